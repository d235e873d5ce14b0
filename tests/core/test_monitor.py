"""The monitor logs completed updates, and nothing else."""

from __future__ import annotations

import pytest
import torch

from borat import ALIG, BORAT, FreeBORAT
from borat.monitor import Monitor
from problems import batches, network, train


@pytest.mark.parametrize("bundle_size", [1, 2, 3, 5])
def test_numbers_are_those_of_the_last_step(bundle_size):
    model, rows = network(), []
    optimizer = BORAT(model.parameters(), lr=0.7, bundle_size=bundle_size)
    monitor = Monitor(optimizer, rows.append)
    for count, batch in enumerate(batches(8), start=1):
        train(model, optimizer, [batch])
        assert len(rows) == count // max(bundle_size - 1, 1)
        if optimizer.bundle_position == 0:
            info, row = optimizer.last_step, rows[-1]
            weights = [row[f"borat/alpha/{n}"] for n in range(max(bundle_size - 1, 1))]
            bound = [row["borat/alpha/bound"]] if bundle_size > 1 else []
            assert (*weights, *bound) == info.alpha
            assert row["borat/support"] == len(info.support)
            assert row["borat/dual_value"] == info.dual_value
            assert row["borat/step_norm"] == info.step_norm
            assert row["borat/step_size"] == pytest.approx(0.7 * sum(weights))
            assert row["borat/dropped_batches"] == 0
            if bundle_size <= 3:
                assert sum(count for name, count in row.items() if "kind" in name) == len(rows)
                assert row[f"borat/kind/{info.kind}"] == monitor.kinds[info.kind]
    assert all(isinstance(number, float) for row in rows for number in row.values())


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
def test_numbers_of_free_borat(bundle_size):
    """There is a row for each batch; the first have fewer pieces."""
    model, rows = network(), []
    optimizer = FreeBORAT(model.parameters(), bundle_size)
    Monitor(optimizer, rows.append)
    for count, batch in enumerate(batches(6), start=1):
        train(model, optimizer, [batch])
        info, row = optimizer.last_step, rows[-1]
        assert len(rows) == count
        assert len(info.alpha) == min(count, bundle_size - 1) + 1
        assert row["borat/alpha/bound"] == info.alpha[-1]
        assert (row["borat/step_size"], row["borat/gap"], row["borat/step_norm"]) == (
            info.step_size,
            info.gap,
            info.step_norm,
        )


def test_polyak_step_without_a_cap():
    model, rows = network(), []
    optimizer = ALIG(model.parameters(), lr=None)
    Monitor(optimizer, rows.append)
    train(model, optimizer, batches(1))
    assert rows[0]["borat/step_size"] == optimizer.last_step.lr * optimizer.last_step.alpha[0]


def test_groups_have_their_own_step_size():
    model, rows = network(), []
    optimizer = BORAT([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}])
    Monitor(optimizer, rows.append)
    train(model, optimizer, batches(2))
    weight = sum(optimizer.last_step.alpha[:-1])
    assert [rows[0][f"borat/step_size/{group}"] for group in (0, 1)] == [0.1 * weight, 0.2 * weight]


def test_every_counts_updates_and_close_ends_it():
    model, rows = network(), []
    optimizer = BORAT(model.parameters(), bundle_size=3)
    monitor = Monitor(optimizer, rows.append, every=2, prefix="opt/")
    train(model, optimizer, batches(12))
    assert len(rows) == 3
    assert monitor.kinds.total() == 6
    assert all(name.startswith("opt/") for name in rows[0])
    monitor.close()
    train(model, optimizer, batches(8))
    assert len(rows) == 3


def test_nothing_is_logged_without_an_update(monkeypatch):
    """Open bundles log nothing, dropped batches only their number, and no tensor is read."""
    model, rows = network(), []
    optimizer = BORAT(model.parameters(), bundle_size=3)
    monitor = Monitor(optimizer, rows.append)
    train(model, optimizer, batches(1))
    assert rows == []
    with pytest.warns(UserWarning, match="is not finite"):
        train(model, optimizer, batches(1), lambda loss: loss * float("nan"))
    train(model, optimizer, batches(1))
    assert rows[0] == {"borat/dropped_batches": 1.0}
    assert rows[1]["borat/dropped_batches"] == 1

    def forbidden(*args):
        raise AssertionError("the monitor must not touch tensors")

    for name in ("item", "tolist", "__float__", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    monitor._seen = (None, 1)
    monitor._after_step(optimizer, (), {})
    assert len(rows) == 3


def test_tensorboard_holds_the_numbers(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the trainers extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model, infos = network(), []
    optimizer = BORAT(model.parameters(), bundle_size=3)
    with SummaryWriter(tmp_path) as writer:
        Monitor(optimizer, writer, first_step=100)
        for batch in batches(6):
            train(model, optimizer, [batch])
            if optimizer.bundle_position == 0:
                infos.append(optimizer.last_step)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    written = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    assert [event.step for event in written["borat/dual_value"]] == [102, 104, 106]
    for tag, wanted in {
        "alpha/0": [info.alpha[0] for info in infos],
        "alpha/bound": [info.alpha[2] for info in infos],
        "dual_value": [info.dual_value for info in infos],
        "step_norm": [info.step_norm for info in infos],
        "step_size": [0.1 * sum(info.alpha[:2]) for info in infos],
        "support": [len(info.support) for info in infos],
    }.items():
        assert [event.value for event in written[f"borat/{tag}"]] == pytest.approx(wanted)
    kinds = {tag.rpartition("/")[2]: events[-1].value for tag, events in written.items() if "kind" in tag}
    assert kinds == {kind: [info.kind for info in infos].count(kind) for kind in {info.kind for info in infos}}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
def test_lightning_log_dict(tmp_path):
    lightning = pytest.importorskip("lightning", reason="needs the trainers extra")
    from borat.integrations.lightning import BoratCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network(torch.float32)

        def training_step(self, batch, batch_idx):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = BORAT(self.parameters())
            Monitor(optimizer, self.log_dict)
            return optimizer

    trainer = lightning.Trainer(
        callbacks=[BoratCallback()],
        max_steps=4,
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(batches(4, torch.float32), batch_size=None))
    last = trainer.optimizers[0].last_step
    assert trainer.callback_metrics["borat/dual_value"].item() == pytest.approx(last.dual_value)


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_every_is_checked(every):
    with pytest.raises(ValueError, match="every must be an integer of at least 1"):
        Monitor(ALIG(network().parameters()), print, every=every)


def test_sink_is_checked():
    with pytest.raises(ValueError, match="to must be a SummaryWriter or a function"):
        Monitor(ALIG(network().parameters()), "runs")


def test_dropped_batches_are_written_without_an_update():
    w = torch.nn.Parameter(torch.ones(1))
    optimizer, rows = BORAT([w]), []
    Monitor(optimizer, rows.append)
    w.grad = torch.ones(1)
    with pytest.warns(UserWarning, match="not finite"):
        for _ in range(3):
            optimizer.step(loss=float("nan"))
    assert rows == [{"borat/dropped_batches": float(n)} for n in (1, 2, 3)]
