"""Checks for several processes that train together. test_distributed.py runs them in each process."""

from __future__ import annotations

import copy
import math
import pickle
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from borat import BORAT, FreeBORAT
from borat._numbers.rolling import columns
from borat._optim.base import LossOptimizer
from borat.constraints import Box, L1Ball, L2Ball, NonNegative, Simplex
from problems import batches, network

CHECKS: dict[str, Callable[[Path], None]] = {}
"""By name: each for BORAT, and again for FreeBORAT."""
classes = [BORAT]
"""The optimizer that is checked now."""
SIZES = (2, 3, 5)
OPTIONS = {"lr": 0.7, "momentum": 0.9, "constraint": L2Ball(2.2)}


def check(function):
    def run(cls: type[LossOptimizer], folder: Path) -> None:
        classes[0] = cls
        (folder / cls.__name__).mkdir(exist_ok=True)
        function(folder / cls.__name__)

    for cls in (BORAT, FreeBORAT):
        CHECKS[f"{function.__name__}: {cls.__name__}"] = partial(run, cls)
    return function


def build(params, lr: float = 0.7, bundle_size: int = 3, **options) -> LossOptimizer:
    if classes[0] is BORAT:
        return BORAT(params, lr, bundle_size, **options)
    return FreeBORAT(params, bundle_size, **{k: v for k, v in options.items() if k != "momentum"})


def position(optimizer: LossOptimizer, expected: int) -> bool:
    """Return True if the bundle has the expected position; FreeBORAT's is never open."""
    return optimizer.bundle_position == (0 if isinstance(optimizer, FreeBORAT) else expected)


def whole(model: nn.Module) -> Tensor:
    """Return all parameters as one vector, including sharded ones."""
    params = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in params])


def my_part(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    x, y = batch
    return x.chunk(dist.get_world_size())[dist.get_rank()], y.chunk(dist.get_world_size())[dist.get_rank()]


def train(model: nn.Module, optimizer: LossOptimizer, data, split: bool = True) -> list[Tensor]:
    points = []
    for batch in data:
        x, y = my_part(batch) if split else batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(loss=loss)
        points.append(whole(model))
    return points


def alone(model: nn.Module, data, **options) -> list[Tensor]:
    """Return the result of the same training in one process, on whole batches."""
    model = copy.deepcopy(model)
    return train(model, build(model.parameters(), reduce_loss=False, **options), data, split=False)


def sharded(model: nn.Module, **options) -> nn.Module:
    model = copy.deepcopy(model)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def assert_same_on_all(tensor: Tensor) -> None:
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    assert all(torch.equal(other, tensor) for other in everyone), "the processes have drifted apart"


def assert_equal(points: list[Tensor], expected: list[Tensor]) -> None:
    for point, reference in zip(points, expected, strict=True):
        torch.testing.assert_close(point, reference, rtol=0, atol=1e-9)


@check
def ddp_equals_one_process(folder):
    for size in SIZES:
        torch.manual_seed(0)
        model, data = network(), batches(12)
        expected = alone(model, data, bundle_size=size, **OPTIONS)
        parallel = DistributedDataParallel(model)
        points = train(parallel, build(parallel.parameters(), bundle_size=size, **OPTIONS), data)
        assert_equal(points, expected)
        assert_same_on_all(points[-1])


@check
def ddp_on_the_device_equals_one_process(folder):
    """Steps as on GPUs; one process has a batch that all must drop."""
    for size in SIZES:
        torch.manual_seed(0)
        model, data = network(), batches(8)
        expected = alone(model, data, bundle_size=size, **OPTIONS)
        parallel = DistributedDataParallel(model)
        optimizer = build(parallel.parameters(), bundle_size=size, capturable=True, **OPTIONS)
        points = train(parallel, optimizer, data[:5])
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            for p in parallel.parameters():
                p.grad = torch.ones_like(p)
        with warnings.catch_warnings(action="ignore"):
            optimizer.step(loss=1.0)
            assert optimizer.dropped_batches == 1
        points += train(parallel, optimizer, data[5:])
        assert_equal(points, expected)
        assert_same_on_all(points[-1])


@check
def a_loss_that_is_reduced_already(folder):
    torch.manual_seed(0)
    model, data = network(), batches(8)
    expected = alone(model, data, bundle_size=3, lr=0.7)
    parallel = DistributedDataParallel(model)
    optimizer = build(parallel.parameters(), 0.7, 3, reduce_loss=False)
    for batch in data:
        x, y = my_part(batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(x), y)
        loss.backward()
        mean = loss.detach().clone() / dist.get_world_size()
        dist.all_reduce(mean)
        optimizer.step(loss=mean)
    assert_equal([whole(parallel)], expected[-1:])


@check
def processes_that_train_apart(folder):
    """With a process group of one, or with a loss that is not reduced, there is no communication."""
    torch.manual_seed(dist.get_rank())
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    model, data = network(), batches(4, seed=dist.get_rank())
    expected = alone(model, data, bundle_size=3, lr=0.7)
    optimizer = build(model.parameters(), 0.7, 3, process_group=groups[dist.get_rank()])
    assert_equal(train(model, optimizer, data, split=False), expected)


@check
def a_non_finite_loss_on_one_process_drops_the_batch_on_all(folder):
    for bad in (math.nan, math.inf):
        torch.manual_seed(0)
        parallel = DistributedDataParallel(network())
        optimizer = build(parallel.parameters(), 0.7, 3)
        for i, batch in enumerate(batches(6)):
            x, y = my_part(batch)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(parallel(x), y)
            loss.backward()
            before = whole(parallel)
            if i == 3 and dist.get_rank() == 0:
                loss = loss * bad
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimizer.step(loss=loss)
            assert torch.equal(whole(parallel), before) == (i == 3)
        assert optimizer.dropped_batches == 1
        assert_same_on_all(whole(parallel))


@check
def one_collective_for_each_piece(folder):
    torch.manual_seed(0)
    model = sharded(network())
    optimizer = build(model.parameters(), 0.7, 5)
    sizes, original = [], dist.all_reduce

    def counting(tensor, *args, **kwargs):
        sizes.append(tensor.numel() * tensor.element_size())
        return original(tensor, *args, **kwargs)

    for batch in batches(4):
        x, y = my_part(batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        dist.all_reduce = counting
        try:
            optimizer.step(loss=loss)
        finally:
            dist.all_reduce = original
    products = sum(columns(4)) if classes[0] is FreeBORAT else 4
    assert sizes == 4 * [8 * (products + 1)], "the loss and all products in one message"


@check
def fsdp_equals_one_process(folder):
    """The rows of Linear(5, 7) give uneven shards on two processes."""
    for size in SIZES:
        torch.manual_seed(0)
        model, data = network(), batches(12)
        expected = alone(model, data, bundle_size=size, **OPTIONS)
        spread = sharded(model)
        points = train(spread, build(spread.parameters(), bundle_size=size, **OPTIONS), data)
        assert_equal(points, expected)
        assert_same_on_all(points[-1])


@check
def fsdp_with_even_shards(folder):
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double(), batches(8)
    expected = alone(model, data, bundle_size=3, **OPTIONS)
    spread = sharded(model)
    points = train(spread, build(spread.parameters(), bundle_size=3, **OPTIONS), data)
    assert_equal(points, expected)


@check
def fsdp_with_every_constraint(folder):
    for constraint in (L1Ball(3.0), Box(-0.2, 0.3), NonNegative(), Simplex(2.0)):
        torch.manual_seed(0)
        model, data = network(), batches(4)
        expected = alone(model, data, bundle_size=3, lr=0.7, constraint=constraint)
        spread = sharded(model)
        points = train(spread, build(spread.parameters(), 0.7, 3, constraint=constraint), data)
        assert_equal(points, expected)


@check
def shards_beside_whole_parameters(folder):
    """Only the first layer is sharded; the gradients of the other are averaged by hand."""
    torch.manual_seed(0)
    model, data = network(), batches(8)
    expected = alone(model, data, bundle_size=3, **OPTIONS)
    fully_shard(model[0])
    optimizer = build(model.parameters(), bundle_size=3, **OPTIONS)
    for batch in data:
        x, y = my_part(batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        for p in model[2].parameters():
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)
        optimizer.step(loss=loss)
    assert_equal([whole(model)], expected[-1:])


@check
def eval_and_train_of_shards(folder):
    torch.manual_seed(0)
    model = sharded(network())
    optimizer = build(model.parameters(), 0.7, 4)
    reference = network()
    nn.utils.vector_to_parameters(whole(model), reference.parameters())
    alone = build(reference.parameters(), 0.7, 4, reduce_loss=False)
    trial = train(model, optimizer, batches(2))[-1]
    train(reference, alone, batches(2), split=False)
    optimizer.eval()
    alone.eval()
    torch.testing.assert_close(whole(model), whole(reference), rtol=0, atol=1e-9)
    optimizer.train()
    assert torch.equal(whole(model), trial)


@check
def validation_between_steps_of_a_root_group(folder):
    """FSDP keeps the root's parameters gathered after a forward pass without a backward pass."""
    torch.manual_seed(0)
    model, data = network(), batches(6)
    expected = alone(model, data, bundle_size=4, **OPTIONS)
    spread = fully_shard(copy.deepcopy(model))
    optimizer = build(spread.parameters(), bundle_size=4, **OPTIONS)
    centre = copy.deepcopy(model)
    for i, batch in enumerate(data):
        assert_equal(train(spread, optimizer, [batch]), expected[i : i + 1])
        with torch.no_grad():
            spread(batch[0])
            optimizer.eval()
            nn.utils.vector_to_parameters(whole(spread), centre.parameters())
            torch.testing.assert_close(spread(batch[0]), centre(batch[0]))
            optimizer.train()


@check
def a_process_without_gradients_makes_all_drop_the_batch(folder):
    w = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = build([w], 0.7, 3)
    for i in range(4):
        w.grad = None if i in (0, 2) and dist.get_rank() == 1 else torch.ones(2, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step(loss=1.0)
    assert optimizer.dropped_batches == 2
    assert position(optimizer, 0)
    assert_same_on_all(w.detach())


@check
def a_loss_that_is_sharded_itself(folder):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    start = torch.arange(1.0, 6.0, dtype=torch.float64)
    w, twin = nn.Parameter(distribute_tensor(start, mesh, [Shard(0)])), nn.Parameter(start.clone())
    for param in (w, twin):
        optimizer = build([param], 1e9, 2, momentum=0.0)
        loss = (param * param).sum()
        loss.backward()
        optimizer.step(loss=loss)
    assert not torch.equal(twin, start)
    torch.testing.assert_close(w.full_tensor().detach(), twin.detach())


@check
def tensor_parallel_shards_of_shards(folder):
    """Use FSDP over tensor parallelism (needs four processes)."""
    if dist.get_world_size() < 4:
        return
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    for constraint in (None, L2Ball(2.2)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        data = batches(6)
        expected = alone(model, data, bundle_size=4, lr=0.7, constraint=constraint)
        spread = parallelize_module(
            copy.deepcopy(model), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
        )
        fully_shard(spread, mesh=mesh["data"])
        optimizer = build(spread.parameters(), 0.7, 4, constraint=constraint)
        half = mesh["data"].get_local_rank()
        for i, (x, y) in enumerate(data):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(spread(x.chunk(2)[half]), y.chunk(2)[half])
            loss.backward()
            optimizer.step(loss=loss)
            assert_equal([whole(spread)], expected[i : i + 1])


# Checkpoints: the data of the run, its state after five batches (within a bundle of four), and the expected result


def checkpoint_run() -> tuple[nn.Module, list, list[Tensor]]:
    torch.manual_seed(0)
    model, data = network(), batches(9)
    return model, data, alone(model, data, bundle_size=4, lr=0.7, constraint=L2Ball(2.2))


def checkpoint_optimizer(model: nn.Module) -> LossOptimizer:
    return build(model.parameters(), 0.7, 4, constraint=L2Ball(2.2))


def save_checkpoint(model: nn.Module, optimizer: LossOptimizer, folder: Path, flatten: bool) -> None:
    weights, state = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flatten))
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def load_checkpoint(model: nn.Module, optimizer: LossOptimizer, folder: Path, flatten: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    weights, state = get_state_dict(model, optimizer, options=options)
    saved = {"model": weights, "optimizer": state}
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"], options=options
    )


@check
def checkpoint_within_a_bundle(folder):
    """Save and load with shards; the parent process loads the same files in a single process."""
    for flatten in (False, True):
        model, data, expected = checkpoint_run()
        spread = sharded(model)
        optimizer = checkpoint_optimizer(spread)
        assert_equal(train(spread, optimizer, data[:5]), expected[:5])
        save_checkpoint(spread, optimizer, folder / f"from-many-{flatten}", flatten)
        torch.manual_seed(1)
        other = sharded(network())
        resumed = checkpoint_optimizer(other)
        load_checkpoint(other, resumed, folder / f"from-many-{flatten}", flatten)
        assert position(resumed, 2)
        assert_equal(train(other, resumed, data[5:]), expected[5:])


@check
def checkpoints_around_the_first_bundle(folder):
    """The keys are the same for optimizers that have seen any number of batches."""
    for saved in (0, 1, 2, 3, 5):
        model, data, expected = checkpoint_run()
        spread = sharded(model)
        optimizer = checkpoint_optimizer(spread)
        train(spread, optimizer, data[:saved])
        save_checkpoint(spread, optimizer, folder / f"early-{saved}", False)
        for seen in (0, 1, 3):
            torch.manual_seed(1)
            other = sharded(network())
            resumed = checkpoint_optimizer(other)
            train(other, resumed, batches(seen, seed=9))
            load_checkpoint(other, resumed, folder / f"early-{saved}", False)
            assert_equal(train(other, resumed, data[saved:]), expected[saved:])


@check
def checkpoint_of_one_process(folder):
    for flatten in (False, True):
        _, data, expected = checkpoint_run()
        torch.manual_seed(1)
        spread = sharded(network())
        optimizer = checkpoint_optimizer(spread)
        load_checkpoint(spread, optimizer, folder / f"from-one-{flatten}", flatten)
        assert position(optimizer, 2)
        assert_equal(train(spread, optimizer, data[5:]), expected[5:])


@check
def hybrid_shards(folder):
    """Shards within pairs of processes, copies across pairs (needs four processes)."""
    if dist.get_world_size() < 4:
        return
    torch.manual_seed(0)
    model, data = network(), batches(6)
    expected = alone(model, data, bundle_size=3, **OPTIONS)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    spread = sharded(model, mesh=mesh)
    points = train(spread, build(spread.parameters(), bundle_size=3, **OPTIONS), data)
    assert_equal(points, expected)
    assert_same_on_all(points[-1])


def main(rank: int, world: int, names: list[str], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    results = {}
    for name in names:
        try:
            CHECKS[name](folder)
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
        dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch aborts if the interpreter exits while a gloo thread still releases a tensor
    (folder / f"results-{rank}.pickle").write_bytes(pickle.dumps(results))
