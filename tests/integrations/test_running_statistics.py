"""With FreeBORAT, trainers evaluate and save running statistics measured at the result."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from borat import BORAT, FreeBORAT
from borat.batchnorm import update_statistics
from problems import batches

lightning = pytest.importorskip("lightning", reason="needs the trainers extra")
pytest.importorskip("transformers", reason="needs the trainers extra")
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from borat.integrations.huggingface import BoratTrainer  # noqa: E402
from borat.integrations.lightning import BoratCallback  # noqa: E402
from trainers import huggingface_arguments  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
DATA = batches(6, torch.float32)
KEPT = 2


def network():
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))


def snapshot(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def by_hand(net, kept=KEPT, precision=torch.float32):
    """Return the model after each batch, at the result, with statistics of the last batches."""
    optimizer, results = FreeBORAT(net.parameters()), []
    for k, (x, y) in enumerate(DATA, start=1):
        optimizer.zero_grad()
        with torch.autocast("cpu", precision, enabled=precision is not torch.float32, cache_enabled=False):
            loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step(loss=loss)
        with torch.autocast("cpu", precision, enabled=precision is not torch.float32, cache_enabled=False):
            update_statistics(net, DATA[max(k - kept, 0) : k], optimizer)
        results.append(snapshot(net))
        optimizer.train()
    return results


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert torch.equal(a[name], b[name]), name


class Module(lightning.LightningModule):
    """Count the measurements, and record the validated models."""

    def __init__(self, net, cls=FreeBORAT):
        super().__init__()
        self.net = net
        self.cls = cls
        self.measured = 0
        self.validated = []

    def forward(self, x):
        self.measured += 1
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        assert not self.net.training
        self.validated.append(snapshot(self.net))

    def configure_optimizers(self):
        return self.cls(self.parameters())


def fit(module, tmp_path, *callbacks, ckpt_path=None, forward=None, **options):
    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 1,
            "callbacks": [BoratCallback(forward, KEPT), *callbacks],
            "default_root_dir": tmp_path,
            "logger": False,
            "enable_checkpointing": any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )
    train = DataLoader(DATA if ckpt_path is None else DATA[3:], batch_size=None)
    validation = DataLoader(DATA[:1], batch_size=None)
    trainer.fit(module, train, validation, ckpt_path=ckpt_path)


def every_step(folder, **options):
    return ModelCheckpoint(
        folder, "{step}", save_top_k=-1, every_n_train_steps=1, save_on_train_epoch_end=False, **options
    )


def saved(path):
    state = torch.load(path, weights_only=True)["state_dict"]
    return {name.removeprefix("net."): value for name, value in state.items()}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_lightning_validates_with_statistics_of_the_result(precision, tmp_path):
    module = Module(network())
    results = by_hand(copy.deepcopy(module.net), precision=precision)
    name = {torch.float32: "32-true", torch.bfloat16: "bf16-mixed"}[precision]
    fit(module, tmp_path, val_check_interval=1, num_sanity_val_steps=0, precision=name)
    assert_same(module.validated, results)


@pytest.mark.parametrize("weights_only", [False, True])
def test_lightning_saves_statistics_of_the_result_and_measures_once_a_step(weights_only, tmp_path):
    module = Module(network())
    results = by_hand(copy.deepcopy(module.net))
    fit(module, tmp_path, every_step(tmp_path, save_weights_only=weights_only), val_check_interval=2)
    assert_same([saved(tmp_path / f"step={step}.ckpt") for step in range(1, 7)], results)
    assert_same(module.validated[1:], results[1::2])  # after Lightning's sanity check
    assert module.measured == 1 + 5 * KEPT


def test_lightning_measures_on_demand_only(tmp_path):
    """Here only at the end."""
    module = Module(network())
    results = by_hand(copy.deepcopy(module.net))
    fit(module, tmp_path, limit_val_batches=0)
    assert_same([snapshot(module.net)], results[-1:])
    assert module.measured == KEPT
    assert not module._state_dict_pre_hooks


def test_lightning_resumes_to_the_bit(tmp_path):
    net = network()
    results = by_hand(copy.deepcopy(net))
    fit(Module(copy.deepcopy(net)), tmp_path, every_step(tmp_path), max_steps=3)
    module = Module(copy.deepcopy(net))
    fit(module, tmp_path, every_step(tmp_path), ckpt_path=tmp_path / "step=3.ckpt", limit_val_batches=0, max_steps=6)
    assert_same([snapshot(module.net)], results[-1:])


@pytest.mark.parametrize(("net", "cls"), [(nn.Linear(5, 3), FreeBORAT), (network(), BORAT)])
def test_lightning_does_not_measure_without_statistics(net, cls, tmp_path):
    module = Module(net, cls)
    fit(module, tmp_path, every_step(tmp_path))
    assert module.measured == 0


def test_lightning_needs_a_forward(tmp_path):
    class WithoutForward(Module):
        forward = lightning.LightningModule.forward

    with pytest.raises(ValueError, match="forward must be given: WithoutForward has no forward method"):
        fit(WithoutForward(network()), tmp_path)
    module = WithoutForward(network())
    results = by_hand(copy.deepcopy(module.net))
    fit(module, tmp_path, forward=lambda module, batch: module.net(batch[0]))
    assert_same([snapshot(module.net)], results[-1:])
    with pytest.raises(ValueError, match="forward must be None or a callable on the module and a batch, got 3"):
        BoratCallback(forward=3)
    with pytest.raises(ValueError, match="batches must be an integer of at least 1, got 0"):
        BoratCallback(batches=0)


def test_copies_of_a_model_are_not_measured(tmp_path):
    """Such as an averaged model, or a copy for another process."""

    class Copy(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            measured = pl_module.measured
            hooked.append(bool(pl_module._state_dict_pre_hooks))
            twin = copy.copy(pl_module)
            for copied in (copy.deepcopy, lambda hooks: pickle.loads(pickle.dumps(hooks))):
                twin._state_dict_pre_hooks = copied(pl_module._state_dict_pre_hooks)
                twin.state_dict()
            assert pl_module.measured == measured

    hooked = []
    fit(Module(network()), tmp_path, Copy(), limit_val_batches=0)
    assert hooked == 6 * [True]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Noting(BoratTrainer):
    """Record the evaluated models, and count the measurements."""

    evaluated: list
    measured = 0

    def compute_loss(self, model, inputs, *args, **kwargs):
        if not model.training:
            self.evaluated.append(snapshot(self.model.net))
        self.measured += model.training and not torch.is_grad_enabled()
        return super().compute_loss(model, inputs, *args, **kwargs)


def train_huggingface(model, tmp_path, checkpoint=None, **options):
    arguments = huggingface_arguments(tmp_path, 8, **options)
    rows = [{"x": x, "labels": y} for batch in DATA for x, y in zip(*batch, strict=True)]
    trainer = Noting(model, arguments, train_dataset=rows, eval_dataset=rows[:2], optimizers=(free(model), None))
    trainer.evaluated = []
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def free(model):
    return FreeBORAT(model.parameters())


def saved_by_huggingface(folder):
    return {name.removeprefix("net."): value for name, value in load_file(folder / "model.safetensors").items()}


def test_huggingface_evaluates_and_saves_statistics_of_the_result(tmp_path):
    model = Classifier()
    results = by_hand(copy.deepcopy(model.net), kept=8)
    strategies = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer = train_huggingface(model, tmp_path, **strategies)
    assert_same(trainer.evaluated, results[1::2])
    assert_same([saved_by_huggingface(tmp_path / f"checkpoint-{step}") for step in range(1, 7)], results)
    assert_same([snapshot(model.net)], results[-1:])
    assert trainer.measured == sum(range(1, 7)), "once a step, on the batches so far"


def test_huggingface_measures_on_demand_only(tmp_path):
    model = Classifier()
    results = by_hand(copy.deepcopy(model.net), kept=8)
    trainer = train_huggingface(model, tmp_path)
    assert trainer.measured == 6
    assert_same([snapshot(model.net)], results[-1:])
    trainer.evaluate()
    assert trainer.measured == 6
    assert not model._state_dict_pre_hooks


def test_huggingface_keeps_the_statistics_of_the_best_model(tmp_path):
    model = Classifier()
    each_step = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = train_huggingface(model, tmp_path, load_best_model_at_end=True, **each_step)
    best = saved_by_huggingface(tmp_path / f"checkpoint-{trainer.state.best_global_step}")
    assert_same([snapshot(model.net)], [best])


def test_huggingface_resumes_to_the_bit(tmp_path):
    start = Classifier()
    results = by_hand(copy.deepcopy(start.net), kept=8)
    train_huggingface(copy.deepcopy(start), tmp_path, max_steps=3, save_strategy="steps", save_steps=3)
    model = copy.deepcopy(start)
    train_huggingface(model, tmp_path, str(tmp_path / "checkpoint-3"))
    for name, value in model.net.named_parameters():
        assert torch.equal(value, results[-1][name])
