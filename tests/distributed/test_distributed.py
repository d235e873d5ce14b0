"""Several processes take the same step as one: DDP, FSDP2 and their checkpoints."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from borat import BORAT, FreeBORAT
from distributed_checks import (
    CHECKS,
    assert_equal,
    checkpoint_optimizer,
    checkpoint_run,
    classes,
    load_checkpoint,
    main,
    position,
    save_checkpoint,
    train,
)
from processes import start_warm

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # checkpoints of a single process


def run(world: int, names: list[str], folder: Path) -> list[dict]:
    """Run checks in ``world`` processes; return the outcome of each check in each process."""
    workers = [start_warm(main, rank, world, names, folder) for rank in range(world)]
    try:
        for worker in workers:
            worker.join(timeout=300)
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.exitcode for worker in workers] == [0] * world
    return [pickle.loads((folder / f"results-{rank}.pickle").read_bytes()) for rank in range(world)]


CLASSES = pytest.mark.parametrize("cls", [BORAT, FreeBORAT])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    for cls in (BORAT, FreeBORAT):
        classes[0] = cls
        model, data, expected = checkpoint_run()
        optimizer = checkpoint_optimizer(model)
        assert_equal(train(model, optimizer, data[:5], split=False), expected[:5])
        for flatten in (False, True):
            save_checkpoint(model, optimizer, folder / cls.__name__ / f"from-one-{flatten}", flatten)
    return folder


@pytest.fixture(scope="module")
def results(folder) -> list[dict]:
    return run(2, list(CHECKS), folder)


@pytest.mark.parametrize("name", CHECKS)
def test_two_processes(name, results):
    for rank, outcome in enumerate(results):
        assert outcome[name] is None, f"rank {rank}: {outcome[name]}"


@CLASSES
@pytest.mark.parametrize("flatten", [False, True])
def test_one_process_loads_the_checkpoint_of_two(flatten, cls, results, folder):
    classes[0] = cls
    _, data, expected = checkpoint_run()
    torch.manual_seed(1)
    model = checkpoint_run()[0]
    for p in model.parameters():
        torch.nn.init.normal_(p)
    optimizer = checkpoint_optimizer(model)
    load_checkpoint(model, optimizer, folder / cls.__name__ / f"from-many-{flatten}", flatten)
    assert position(optimizer, 2)
    assert_equal(train(model, optimizer, data[5:], split=False), expected[5:])


def test_four_processes_with_meshes_of_two_dimensions(tmp_path):
    names = ("hybrid_shards", "tensor_parallel_shards_of_shards", "ddp_equals_one_process")
    for rank, outcome in enumerate(run(4, [name for name in CHECKS if name.startswith(names)], tmp_path)):
        assert set(outcome.values()) == {None}, f"rank {rank}: {outcome}"


def test_nothing_is_communicated_without_processes():
    w = torch.nn.Parameter(torch.ones(2))
    w.grad = torch.ones(2)
    BORAT([w]).step(loss=1.0)
    FreeBORAT([w]).step(loss=1.0)
    assert not torch.distributed.is_initialized()
