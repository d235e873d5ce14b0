from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from borat.losses import MultiClassHingeLoss, SmoothHingeLoss, TopKCrossEntropyLoss


def literal_hinge(scores, target, margin=1.0):
    return torch.stack(
        [
            max(s[j] + (margin if j != y else 0.0) for j in range(len(s))) - s[y]
            for s, y in zip(scores, target, strict=True)
        ]
    )


def literal_top_k(scores, target, k):
    losses = []
    for s, y in zip(scores, target, strict=True):
        rivals = sorted((s[j] for j in range(len(s)) if j != y), reverse=True)[k - 1 :]
        losses.append(torch.log(1 + sum(torch.exp(r - s[y]) for r in rivals)))
    return torch.stack(losses)


@pytest.fixture
def batch():
    return torch.randn(12, 7, dtype=torch.float64, requires_grad=True), torch.randint(7, (12,))


@pytest.mark.parametrize("margin", [0.0, 0.5, 1.0])
def test_hinge(batch, margin):
    scores, target = batch
    expected = literal_hinge(scores, target, margin)
    torch.testing.assert_close(MultiClassHingeLoss(margin, "none")(scores, target), expected)
    torch.testing.assert_close(MultiClassHingeLoss(margin)(scores, target), expected.mean())
    torch.testing.assert_close(MultiClassHingeLoss(margin, "sum")(scores, target), expected.sum())
    assert torch.autograd.gradcheck(MultiClassHingeLoss(margin), batch)


def test_hinge_vanishes_with_a_margin_and_not_before():
    scores = torch.tensor([[3.0, 2.0, 0.0], [3.0, 2.5, 0.0]])
    loss = MultiClassHingeLoss(reduction="none")(scores, torch.tensor([0, 0]))
    torch.testing.assert_close(loss, torch.tensor([0.0, 0.5]))


@pytest.mark.parametrize("margin", [0.0, 0.5, 1.0])
def test_smooth_hinge(batch, margin):
    """The softmax-weighted mean of the leads over the true class, or the hinge loss if that mean is negative."""
    scores, target = batch
    scores = (3.0 * scores).detach().requires_grad_()
    target[::2] = scores.argmax(1)[::2]  # some are classified correctly, with or without a margin
    expected, gradients = [], torch.zeros_like(scores)
    for i, (s, y) in enumerate(zip(scores.tolist(), target.tolist(), strict=True)):
        leads = [s[j] - s[y] + (margin if j != y else 0.0) for j in range(7)]
        total = sum(math.exp(score) for score in s)
        xi = [math.exp(score) / total for score in s]
        if sum(x * lead for x, lead in zip(xi, leads, strict=True)) < 0.0:
            xi = [float(lead == max(leads)) for lead in leads]
        expected.append(sum(x * lead for x, lead in zip(xi, leads, strict=True)))
        gradients[i] = torch.tensor(xi)
        gradients[i, y] -= 1.0
    losses = SmoothHingeLoss(margin, "none")(scores, target)
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    torch.testing.assert_close(gradient, gradients, rtol=1e-6, atol=1e-7)
    hinge = MultiClassHingeLoss(margin, "none")(scores, target)
    assert ((losses >= 0.0) & (losses <= hinge + 1e-12)).all()
    assert len({bool(smooth < exact) for smooth, exact in zip(losses, hinge, strict=True)}) == 2, "both cases occur"


@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_top_k(batch, k):
    scores, target = batch
    expected = literal_top_k(scores, target, k)
    torch.testing.assert_close(TopKCrossEntropyLoss(k, "none")(scores, target), expected)
    torch.testing.assert_close(TopKCrossEntropyLoss(k)(scores, target), expected.mean())
    assert torch.autograd.gradcheck(TopKCrossEntropyLoss(k), batch)


def test_top_1_is_cross_entropy(batch):
    scores, target = batch
    torch.testing.assert_close(TopKCrossEntropyLoss(1)(scores, target), nn.functional.cross_entropy(scores, target))


def test_top_k_vanishes_when_the_truth_is_among_the_first_k():
    scores = torch.full((1, 10), -100.0)
    scores[0, :3] = torch.tensor([50.0, 40.0, 30.0])
    assert TopKCrossEntropyLoss(3)(scores, torch.tensor([2])) < 1e-30
    assert TopKCrossEntropyLoss(2)(scores, torch.tensor([2])) == pytest.approx(10.0, rel=1e-4)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores(size, dtype):
    scores = (size * torch.tensor([[1.0, -1.0, 0.5, 0.0]], dtype=dtype)).requires_grad_()
    for label in range(4):
        for loss in (TopKCrossEntropyLoss(2), MultiClassHingeLoss(), SmoothHingeLoss()):
            value = loss(scores, torch.tensor([label]))
            (gradient,) = torch.autograd.grad(value, scores)
            assert value.isfinite()
            assert value >= 0.0
            assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "loss", [TopKCrossEntropyLoss(1), TopKCrossEntropyLoss(2), MultiClassHingeLoss(), SmoothHingeLoss()]
)
def test_classes_can_be_masked(loss):
    """By a score of minus infinity; even all classes but the true one."""
    impossible = -torch.inf
    scores = torch.tensor([[0.0, 3.0, impossible, impossible], [2.0, impossible, impossible, impossible]])
    scores.requires_grad_()
    value = loss(scores, torch.tensor([0, 0]))
    (gradient,) = torch.autograd.grad(value, scores)
    assert value.isfinite()
    assert gradient[0].isfinite().all()
    assert (gradient[1] == 0.0).all()
    assert (gradient[:, 2:] == 0.0).all()


@pytest.mark.parametrize("loss", [TopKCrossEntropyLoss(2), MultiClassHingeLoss(), SmoothHingeLoss()])
def test_bfloat16(loss):
    scores = torch.randn(4, 5).bfloat16()
    assert loss(scores, torch.tensor([0, 1, 2, 3])).dtype == torch.bfloat16


def test_printing():
    assert repr(MultiClassHingeLoss()) == "MultiClassHingeLoss(margin=1.0, reduction='mean')"
    assert repr(SmoothHingeLoss()) == "SmoothHingeLoss(margin=1.0, reduction='mean')"
    assert repr(TopKCrossEntropyLoss()) == "TopKCrossEntropyLoss(k=5, reduction='mean')"


SCORES, TARGET = torch.zeros(4, 5), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiClassHingeLoss(margin=-1.0), "margin must be a number of at least 0, got -1.0"),
        (lambda: MultiClassHingeLoss(reduction="max"), "reduction must be one of 'mean', 'sum', 'none', got 'max'"),
        (lambda: TopKCrossEntropyLoss(k=0), "k must be an integer of at least 1, got 0"),
        (lambda: TopKCrossEntropyLoss(k=2.0), "k must be an integer of at least 1, got 2.0"),
        (lambda: TopKCrossEntropyLoss(k=5)(SCORES, TARGET), "k must be less than the number of classes, got k=5 for 5"),
        (lambda: TopKCrossEntropyLoss()(SCORES[0], TARGET), r"got \(5,\) and \(4,\)"),
        (lambda: MultiClassHingeLoss()(SCORES, TARGET[:3]), r"got \(4, 5\) and \(3,\)"),
    ],
)
def test_rejects(make, message):
    with pytest.raises(ValueError, match=message):
        make()
