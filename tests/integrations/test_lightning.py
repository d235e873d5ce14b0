"""Lightning's Trainer and Fabric against hand-written loops."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader

from borat import BORAT, FreeBORAT
from flavours import Flavour
from problems import batches, network

lightning = pytest.importorskip("lightning", reason="needs the trainers extra")
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from borat.integrations import unwrap  # noqa: E402
from borat.integrations.lightning import BoratCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


def over(*flavours):
    return pytest.mark.parametrize("make", flavours, ids=str)


BORAT3, BORAT5, FREE3, FREE5 = (Flavour(cls, size) for cls in (BORAT, FreeBORAT) for size in (3, 5))


class Loader:
    """Batches in order, for one pass, with a count of those given out."""

    def __init__(self, data):
        self.data = data
        self.given = 0

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        for batch in self.data[self.given :]:
            self.given += 1
            yield batch

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class Module(lightning.LightningModule):
    def __init__(self, net, make=BORAT3):
        super().__init__()
        self.net = net
        self.make = make
        self.trained_at = []
        self.validated_at = []

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch, batch_idx):
        self.trained_at.append(point(self.net))
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.validated_at.append(point(self.net))

    test_step = validation_step

    def configure_optimizers(self):
        return self.make(self.parameters(), lr=1.0)


def point(model):
    return parameters_to_vector(model.parameters()).detach().clone()


def fit(module, data, tmp_path, callbacks=(), validation=None, ckpt_path=None, **options):
    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu",
            "max_steps": len(data),
            "max_epochs": -1,
            "callbacks": [BoratCallback(), *callbacks],
            "default_root_dir": tmp_path,
            "logger": False,
            "enable_checkpointing": bool(callbacks),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            **options,
        }
    )
    loaders = (Loader(data),) if validation is None else (Loader(data), DataLoader(validation, batch_size=None))
    trainer.fit(module, *loaders, ckpt_path=ckpt_path)
    return trainer


def by_hand(net, data, make=BORAT3, step=None):
    """Return the points at which the batches are evaluated, and the result after each."""
    optimizer = make(net.parameters(), lr=1.0)
    trials, results = [], []
    for x, y in data:
        trials.append(point(net))
        optimizer.zero_grad()
        if step is not None:
            step(optimizer, x, y)
        else:
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step(loss=loss)
        optimizer.eval()
        results.append(point(net))
        optimizer.train()
    return trials, results


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


@over(Flavour(BORAT, 1), Flavour(BORAT, 2), BORAT3, BORAT5, Flavour(FreeBORAT, 2), FREE3, FREE5)
def test_equals_a_hand_written_loop_to_the_bit(make, tmp_path):
    net, data = network(torch.float32), batches(7, torch.float32)
    trials, results = by_hand(copy.deepcopy(net), data, make)
    module = Module(net, make)
    fit(module, data, tmp_path)
    assert_same(module.trained_at, trials)
    assert torch.equal(point(net), results[-1])


@over(BORAT3, FREE3)
def test_accumulated_batches_equal_large_ones(make, tmp_path):
    net, data = network(), batches(5)
    _, results = by_hand(copy.deepcopy(net), data, make)
    halves = [(x[part], y[part]) for x, y in data for part in (slice(0, 4), slice(4, 8))]
    fit(Module(net, make), halves, tmp_path, max_steps=5, accumulate_grad_batches=2, precision="64-true")
    torch.testing.assert_close(point(net), results[-1], rtol=0, atol=1e-12)


@over(BORAT3, FREE3)
def test_bf16_mixed(make, tmp_path):
    net, data = network(torch.float32), batches(6, torch.float32)
    hand = copy.deepcopy(net)

    def step(optimizer, x, y):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            loss = nn.functional.cross_entropy(hand(x), y)
        loss.backward()
        optimizer.step(loss=loss)

    _, results = by_hand(hand, data, make, step)
    fit(Module(net, make), data, tmp_path, precision="bf16-mixed")
    assert torch.equal(point(net), results[-1])


@over(BORAT3, FREE3)
@pytest.mark.parametrize("scale", [2.0**10, 2.0**24])
def test_16_mixed_sees_the_unscaled_loss_and_skips_what_overflows(make, scale, tmp_path):
    net, data = network(torch.float32), batches(14, torch.float32)
    hand = copy.deepcopy(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    def step(optimizer, x, y):
        with torch.autocast("cpu", torch.float16, cache_enabled=False):
            loss = nn.functional.cross_entropy(hand(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer, loss=loss)
        scaler.update()

    trials, results = by_hand(hand, data, make, step)
    assert torch.equal(trials[1], trials[0]) == (scale > 2**20), "the large scale overflows"
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))
    module = Module(net, make)
    fit(module, data, tmp_path, plugins=plugin)
    assert_same(module.trained_at, trials)
    assert torch.equal(point(net), results[-1])


@over(BORAT5, FREE3)
def test_validation_sees_the_result(make, tmp_path):
    net, data = network(torch.float32), batches(7, torch.float32)
    trials, results = by_hand(copy.deepcopy(net), data, make)
    module = Module(net, make)
    fit(module, data, tmp_path, validation=data[:1], val_check_interval=1)
    assert_same(module.validated_at, results)
    assert_same(module.trained_at, trials)


@over(BORAT5, FREE3)
@pytest.mark.parametrize("weights_only", [False, True])
def test_checkpoints_hold_the_result(make, weights_only, tmp_path):
    net, data = network(torch.float32), batches(6, torch.float32)
    _, results = by_hand(copy.deepcopy(net), data, make)
    fit(Module(net, make), data, tmp_path, [every_step(tmp_path, save_weights_only=weights_only)])
    for step, result in enumerate(results, start=1):
        assert torch.equal(saved_point(tmp_path / f"step={step}.ckpt"), result)


@over(BORAT5, FREE3)
def test_resumes_exactly_within_a_bundle_and_again(make, tmp_path):
    """Each run takes two more steps from the checkpoint of the previous run."""
    start, data = network(torch.float32), batches(9, torch.float32)
    trials, results = by_hand(copy.deepcopy(start), data, make)
    checkpoint = None
    for steps in (1, 3, 5, 7, 9):
        module = Module(copy.deepcopy(start), make)
        checkpoints = every_step(tmp_path)
        fit(module, data, tmp_path, [checkpoints], max_steps=steps, ckpt_path=checkpoint)
        checkpoint = tmp_path / f"step={steps}.ckpt"
        assert_same(module.trained_at, trials[max(steps - 2, 0) : steps])
        assert torch.equal(saved_point(checkpoint), results[steps - 1])


@over(BORAT5, FREE3)
def test_loaded_weights_are_tested_not_the_result_of_the_last_bundle(make, tmp_path):
    net, data = network(torch.float32), batches(6, torch.float32)
    module = Module(net, make)
    trainer = fit(module, data, tmp_path, [every_step(tmp_path)])
    module.validated_at.clear()
    path = tmp_path / "step=2.ckpt"
    trainer.test(module, DataLoader(data[:1], batch_size=None), ckpt_path=path, verbose=False, weights_only=True)
    assert_same(module.validated_at, [saved_point(path)])


@over(BORAT5, FREE3)
def test_an_interrupted_batch_leaves_the_model_at_the_result(make, tmp_path):
    class Interrupt(Callback):
        def on_after_backward(self, trainer, pl_module):
            if trainer.global_step == 2:
                raise ZeroDivisionError

    net, data = network(torch.float32), batches(6, torch.float32)
    _, results = by_hand(copy.deepcopy(net), data, make)
    with pytest.raises(ZeroDivisionError):
        fit(Module(net, make), data, tmp_path, [Interrupt()])
    assert torch.equal(point(net), results[1])


@over(BORAT3, FREE3)
def test_manual_optimization(make, tmp_path):
    class Manual(Module):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            self.trained_at.append(point(self.net))
            optimizer, loss = self.optimizers(), self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step(closure=lambda: loss)

    net, data = network(torch.float32), batches(5, torch.float32)
    trials, _ = by_hand(copy.deepcopy(net), data, make)
    module = Manual(net, make)
    fit(module, data, tmp_path)
    assert_same(module.trained_at, trials)


def test_reports_mistakes(tmp_path):
    class Other(Module):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(TypeError, match="must be a FreeBORAT, BORAT or ALIG, got a SGD"):
        fit(Other(network(torch.float32)), batches(1, torch.float32), tmp_path)
    with pytest.warns(UserWarning, match="gradient_clip_val=1 clips the gradients"):
        fit(Module(network(torch.float32)), batches(1, torch.float32), tmp_path, gradient_clip_val=1.0)


@over(BORAT5, FREE3)
def test_fabric_equals_a_hand_written_loop(make, tmp_path):
    net, data = network(torch.float32), batches(7, torch.float32)
    _, results = by_hand(copy.deepcopy(net), data, make)
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    borat = make(net.parameters(), lr=1.0)
    model, optimizer = fabric.setup(net, borat)
    assert unwrap(optimizer) is borat
    for step, (x, y) in enumerate(data):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        if step % 2:
            optimizer.step(lambda loss=loss: loss)
        else:
            borat.observe(loss)
            optimizer.step()
        if step == 4:  # within a bundle
            fabric.save(tmp_path / "state", {"model": model, "optimizer": optimizer})
            nn.init.zeros_(net[0].weight)
            fabric.load(tmp_path / "state", {"model": model, "optimizer": optimizer})
    borat.eval()
    assert torch.equal(point(net), results[-1])


def every_step(folder, **options):
    return ModelCheckpoint(
        folder, "{step}", save_top_k=-1, every_n_train_steps=1, save_on_train_epoch_end=False, **options
    )


def saved_point(path):
    state = torch.load(path, weights_only=True)["state_dict"]
    return parameters_to_vector(state.values())
