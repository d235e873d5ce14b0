"""The kernels of a step on a GPU: in Triton's interpreter they do what their formulas say, and compilers take them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.library import opcheck

from borat import kernels_on_device
from borat.kernels_on_device import bundle_move, bundle_products, rolling_move, rolling_products

pytest.importorskip("triton", minversion="3.5", reason="needs an interpreter of Triton that knows NumPy 2")

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "helpers" / "compile_kernels.py"
GUARD = 7
PIECES = [1, 2, 3, 7]
REAL = {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32}

over_pieces = pytest.mark.parametrize("pieces", PIECES)
over_sizes = pytest.mark.parametrize("n", [1, 63, 64, 65, 500])
over_dtypes = pytest.mark.parametrize("dtype", REAL, ids=str)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """So that a vector has several, and a program takes more than one of them."""
    monkeypatch.setattr(kernels_on_device, "_BLOCK", 64)
    monkeypatch.setattr(kernels_on_device, "_PROGRAMS", 3)


class Vectors:
    """Random ones within larger ones, in which nothing else may be written."""

    def __init__(self, n: int, dtype: torch.dtype) -> None:
        self.n, self.dtype, self._all = n, dtype, []

    def __call__(self, rows: int | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        size = self.n * (rows or 1)
        around = torch.full((size + 2 * GUARD,), 7.0, dtype=dtype or self.dtype)
        inside = around[GUARD:-GUARD].copy_(torch.randn(size))
        self._all.append(around)
        return inside.view(rows, self.n) if rows else inside

    def assert_nothing_else_is_written(self) -> None:
        for around in self._all:
            assert (around[:GUARD] == 7.0).all()
            assert (around[-GUARD:] == 7.0).all()


def exact(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64, copy=True)


def assert_near(actual: torch.Tensor, exact: torch.Tensor, scale: float = 1.0) -> None:
    """As near as the dtype allows."""
    tolerance = 16 * scale * torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual.double(), exact, rtol=tolerance, atol=tolerance)


@over_pieces
@over_sizes
@over_dtypes
@pytest.mark.parametrize("is_open", [False, True])
def test_bundle_products(pieces, n, dtype, is_open):
    vectors = Vectors(n, dtype)
    rows, weights, centre = vectors(pieces), vectors(), vectors()
    expected = weights.clone() if not is_open else centre.clone()
    sums = bundle_products(rows, weights, centre, torch.tensor([is_open])).sum(0)
    eps = torch.finfo(REAL[dtype]).eps
    torch.testing.assert_close(sums, rows.double() @ rows[-1].double(), rtol=0, atol=16 * n * eps)
    assert torch.equal(centre, expected)
    vectors.assert_nothing_else_is_written()
    without = bundle_products(rows, weights, None, torch.tensor([is_open])).sum(0)
    assert torch.equal(without, sums)


@over_pieces
@over_dtypes
@pytest.mark.parametrize(("ok", "completes"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("keeps", ["nothing", "velocity", "centre", "centre and velocity"])
def test_bundle_move(pieces, dtype, ok, completes, keeps):
    vectors = Vectors(200, dtype)
    rows, weights = vectors(pieces), vectors()
    centre = vectors() if "centre" in keeps else None
    velocity = vectors() if "velocity" in keeps else None
    base, G = exact(weights if centre is None else centre), exact(rows)
    v = None if velocity is None else exact(velocity)
    newest = G[-1] if ok else torch.zeros_like(G[-1])
    row = pieces // 2 if ok else pieces - 1
    expected = G.clone()
    expected[row] = newest
    steps = torch.linspace(-0.3, 0.4, pieces, dtype=torch.float64)
    steps[row + 1 :] = 0.0  # pieces that are not there yet
    if not ok:
        rows[-1] = torch.nan
    numbers = torch.cat((steps, torch.tensor([row, ok, completes, 0.9], dtype=torch.float64)))
    bundle_move(rows, weights, centre, velocity, numbers)
    u = steps @ expected
    point = base - u
    if v is not None and completes:
        v = 0.9 * v + u
        point -= 0.9 * v
    assert_near(weights, point)
    assert v is None or assert_near(velocity, v) is None
    assert torch.equal(rows[row].double(), newest)
    others = [i for i in range(pieces) if i != row]
    assert torch.equal(rows[others].double(), expected[others])
    assert centre is None or torch.equal(centre.double(), base)
    vectors.assert_nothing_else_is_written()


METRIC = torch.tensor([0.99, 3.0, 1e-3], dtype=torch.float64)


def rolling(n, dtype, pieces, scale=1.0):
    vectors = Vectors(n, dtype)
    rows, weights, centre, rms = vectors(pieces), vectors(), vectors(), vectors(dtype=REAL[dtype])
    rows.mul_(scale)
    rms.abs_().mul_(scale)
    root = (0.99 * rms.double().square() + 0.01 * rows[-1].double().square()).sqrt()
    return vectors, (rows, weights, centre, rms), root, METRIC[2] + METRIC[1] * root


@over_pieces
@over_sizes
@over_dtypes
def test_rolling_products(pieces, n, dtype):
    vectors, given, _, D = rolling(n, dtype, pieces)
    before = [x.clone() for x in given]
    G, y, z, _ = map(exact, given)
    kinds = (G @ (G / D).mT, G @ z, G[-1] @ (z - y), (G / D) @ (G / D).mT)
    sums = rolling_products(*given, METRIC).sum(0)
    eps, sizes = torch.finfo(REAL[dtype]).eps, [x.numel() for x in kinds]
    for found, kind in zip(sums.split(sizes), kinds, strict=True):
        tolerance = 16 * eps * (n + 8 * float(kind.abs().max()))
        torch.testing.assert_close(found, kind.reshape(-1), rtol=0, atol=tolerance)
    assert all(torch.equal(x, old) for x, old in zip(given, before, strict=True))
    vectors.assert_nothing_else_is_written()


@pytest.mark.parametrize("scale", [0.0, 1e-36, 1e-30, 1e30, 1e36])
def test_metric_of_extreme_gradients(scale):
    """Squares of these are not numbers of float32."""
    _, given, root, _ = rolling(100, torch.float32, 2, scale)
    numbers = torch.tensor([0, 0, 0, 1, 0, 0, 0], dtype=torch.float64)
    rolling_move(*given, torch.cat((METRIC, numbers)))
    torch.testing.assert_close(given[3].double(), root, rtol=1e-5, atol=1e-44)


def test_metric_keeps_its_digits_with_a_long_memory():
    _, (rows, weights, centre, rms), _, _ = rolling(100, torch.float32, 2)
    beta2 = torch.tensor(0.99999, dtype=torch.float64)
    rms.zero_()
    numbers = torch.tensor([0, 0, 0, 1, 0, 0, 0], dtype=torch.float64)
    rolling_move(rows, weights, centre, rms, torch.cat((beta2.reshape(1), METRIC[1:], numbers)))
    expected = (1.0 - beta2).sqrt() * rows[-1].double().abs()
    torch.testing.assert_close(rms.double(), expected, rtol=1e-6, atol=0)


@over_pieces
@over_dtypes
@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_rolling_move(pieces, dtype, ok, decay):
    vectors, given, root, D = rolling(200, dtype, pieces)
    rows, weights, centre, rms = given
    G, y, z, old = map(exact, given)
    steps = torch.linspace(-0.3, 0.4, pieces, dtype=torch.float64)
    row = max(pieces - 2, 0) if ok else pieces - 1
    if not ok:
        rows[-1], root = torch.nan, old
    numbers = [decay, ok, 0.3, 0.0 if not ok else -0.2, row]
    rolling_move(*given, torch.cat((METRIC, steps, torch.tensor(numbers, dtype=torch.float64))))
    u = (steps @ (G / D) + decay * y) * ok
    assert_near(centre, z - u, scale=4.0)
    assert_near(weights, y + numbers[3] * (y - z) - 0.3 * u, scale=4.0)
    assert_near(rms, root)
    assert torch.equal(rows[row].double(), G[-1] * ok)
    others = [i for i in range(pieces - 1) if i != row]
    assert torch.equal(rows[others].double(), G[others])
    vectors.assert_nothing_else_is_written()


def test_a_gpu_that_cannot_run_them_has_pytorchs_operations(monkeypatch):
    cpu = torch.device("cpu")
    assert kernels_on_device._work.__wrapped__(cpu)
    assert not kernels_on_device.are_used(cpu)

    def fail(*arguments, **shape):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(kernels_on_device, "_launch", fail)
    with pytest.warns(UserWarning, match="PyTorch's operations take the place .* failed on cpu: .*find C compiler"):
        assert not kernels_on_device._work.__wrapped__(cpu)


@pytest.mark.filterwarnings("ignore:.*")  # of PyTorch's own checks
@pytest.mark.parametrize("kind", ["bundle", "rolling"])
def test_are_operations_like_those_of_pytorch(kind):
    """By its own checks: of the schema, of what is known without values, and of the compiler's view."""
    rows, weights, centre, rms = rolling(100, torch.float64, 2)[1]
    if kind == "bundle":
        opcheck(bundle_products, (rows, weights, centre, torch.tensor([True])))
        opcheck(bundle_move, (rows, weights, centre, None, torch.ones(6, dtype=torch.float64)))
    else:
        opcheck(rolling_products, (rows, weights, centre, rms, METRIC))
        opcheck(rolling_move, (rows, weights, centre, rms, torch.zeros(10, dtype=torch.float64)))


def test_compile_for_gpus():
    """For two of NVIDIA's and one of AMD's, without one; and nothing has to leave the registers."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("cuda")]
    assert len(lines) == 24 + kernels_on_device.LARGEST_DUAL
    assert all(line.endswith("STACK:0, LOCAL:0") for line in lines), done.stdout
