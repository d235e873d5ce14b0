"""Trajectories equal those of the authors' code: every trial point, iterate and alpha."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from borat import ALIG, BORAT
from borat.constraints import L2Ball
from borat.losses import MultiClassHingeLoss
from problems import BACKENDS, use_backend

GOLDEN = np.load(Path(__file__).with_name("golden.npz"))
CASES = sorted({key.split("/")[0] for key in GOLDEN})


def test_there_are_cases():
    assert len(CASES) == 10


@pytest.mark.parametrize("backend", [*BACKENDS, None])
@pytest.mark.parametrize("case", CASES)
def test_trajectory(case, backend, monkeypatch):
    """A backend of None means steps as on a GPU."""
    if backend is not None:
        use_backend(backend, monkeypatch)
    record = {key.split("/")[1]: GOLDEN[key] for key in GOLDEN if key.startswith(case + "/")}
    meta = ast.literal_eval(str(record["meta"]))
    model = nn.Sequential(nn.Linear(6, 9), getattr(nn, meta["activation"])(), nn.Linear(9, 4)).double()
    vector_to_parameters(torch.from_numpy(record["w0"]), model.parameters())
    criterion = nn.CrossEntropyLoss() if meta["loss"] == "ce" else MultiClassHingeLoss()
    optimizer = make_optimizer(model, meta, capturable=backend is None)
    updates = 0
    for i, (x, y) in enumerate(zip(record["X"], record["Y"], strict=True)):
        optimizer.zero_grad()
        loss = criterion(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step(loss=loss)
        point = parameters_to_vector(model.parameters()).detach().numpy()
        np.testing.assert_allclose(loss.item(), record["losses"][i], rtol=0, atol=1e-12)
        np.testing.assert_allclose(point, record["points"][i], rtol=0, atol=1e-12)
        if optimizer.bundle_position == 0:
            alpha = record["alpha"][updates]
            np.testing.assert_allclose(optimizer.last_step.alpha[: len(alpha)], alpha, rtol=0, atol=1e-12)
            np.testing.assert_allclose(point, record["iterates"][updates], rtol=0, atol=1e-12)
            updates += 1
    assert updates == len(record["iterates"])


def make_optimizer(model: nn.Sequential, meta: dict, *, capturable: bool) -> BORAT:
    params = list(model.parameters())
    if meta["group_lrs"]:
        params = [
            {"params": layer.parameters(), "lr": lr}
            for layer, lr in zip((model[0], model[2]), meta["group_lrs"], strict=True)
        ]
    options = {"lr": meta["lr"], "momentum": meta["momentum"], "capturable": capturable}
    if meta["radius"] is not None:
        options["constraint"] = L2Ball(meta["radius"])
    if meta["algorithm"] == "alig":
        return ALIG(params, **options)
    return BORAT(params, bundle_size=meta["bundle_size"], **options)
