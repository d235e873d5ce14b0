"""Losses with a minimum of zero, as BORAT and ALI-G expect: hinge losses and top-k cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from borat._checks import check_count, is_number

__all__ = ["MultiClassHingeLoss", "SmoothHingeLoss", "TopKCrossEntropyLoss"]

_REDUCTIONS = ("mean", "sum", "none")


class MultiClassHingeLoss(torch.nn.Module):
    r"""The multi-class hinge loss of Crammer and Singer, :math:`\max_j \{ s_j + m \, [j \ne y] \} - s_y`.

    ``torch.nn.MultiMarginLoss`` is a different loss: it sums over the classes instead of taking the maximum.

    Args:
        margin: :math:`m`, by which the score of the true class must exceed all others.
        reduction: over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> MultiClassHingeLoss()(torch.tensor([[2.0, 1.5, 0.0]]), torch.tensor([0]))
        tensor(0.5000)
    """

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__()
        if not is_number(margin) or margin < 0.0:
            raise ValueError(f"margin must be a number of at least 0, got {margin!r}")
        self.margin = float(margin)
        self.reduction = _checked_reduction(reduction)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss for ``scores`` of shape (batch, classes) and true classes ``target`` of shape (batch,)."""
        _check_shapes(scores, target)
        return _reduce(self._losses(self._leads(scores, target.unsqueeze(1)), scores), self.reduction)

    def _leads(self, scores: Tensor, truth: Tensor) -> Tensor:
        """Return each score plus the margin minus the score of the true class; 0 for the true class."""
        true_scores = scores.gather(1, truth)
        return (scores + self.margin).scatter(1, truth, true_scores) - true_scores

    def _losses(self, leads: Tensor, scores: Tensor) -> Tensor:
        return leads.amax(1)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, reduction={self.reduction!r}"


class SmoothHingeLoss(MultiClassHingeLoss):
    r"""The hinge loss with the smooth gradients of Berrada, Zisserman and Kumar (Deep Frank-Wolfe, 2019).

    .. math::
        \sum_j \xi_j \, (s_j + m \, [j \ne y] - s_y), \qquad \xi = \mathrm{softmax}(s),

    where :math:`\xi` is treated as a constant in the gradient. All classes close to the true one contribute to the
    gradient, while the gradient of the hinge loss depends only on the closest. If the sum is negative, the hinge loss
    replaces it, so the loss is between zero and the hinge loss and vanishes wherever the hinge loss does.

    Args:
        margin: :math:`m`, see :class:`MultiClassHingeLoss`.
        reduction: over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> SmoothHingeLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        tensor(0.5000)
    """

    def _losses(self, leads: Tensor, scores: Tensor) -> Tensor:
        weights = scores.detach().softmax(1)
        smooth = (weights * leads.masked_fill(weights == 0.0, 0.0)).sum(1)  # masked classes have a score of -inf
        return torch.where(smooth < 0.0, super()._losses(leads, scores), smooth)


class TopKCrossEntropyLoss(torch.nn.Module):
    r"""The truncated top-k entropy loss of Lapin, Hein and Schiele (2016).

    .. math::
        \log \Big( 1 + \sum_{j \in J} \exp(s_j - s_y) \Big),

    where :math:`J` excludes the :math:`k - 1` wrong classes with the largest scores, so that the loss can vanish as
    soon as the true class is among the first :math:`k`. With ``k=1`` it is the cross-entropy.

    Args:
        k: at least 1 and less than the number of classes.
        reduction: over the batch, ``"mean"``, ``"sum"`` or ``"none"``.
    """

    def __init__(self, k: int = 5, reduction: str = "mean") -> None:
        super().__init__()
        check_count("k", k)
        self.k = k
        self.reduction = _checked_reduction(reduction)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss for ``scores`` of shape (batch, classes) and true classes ``target`` of shape (batch,)."""
        _check_shapes(scores, target)
        classes = scores.shape[1]
        if self.k >= classes:
            raise ValueError(f"k must be less than the number of classes, got k={self.k} for {classes} classes")
        truth = target.unsqueeze(1)
        rivals = scores.scatter(1, truth, -torch.inf)
        if self.k > 1:
            rivals = rivals.scatter(1, rivals.topk(self.k - 1, dim=1).indices, -torch.inf)
        is_empty = rivals.amax(1) == -torch.inf  # all other classes are masked: the gradient of logsumexp would be NaN
        total = rivals.masked_fill(is_empty.unsqueeze(1), 0.0).logsumexp(1).masked_fill(is_empty, -torch.inf)
        lead = total - scores.gather(1, truth).squeeze(1)
        # log(1 + exp(lead)), exact at both ends; the default threshold of 20 is coarse in float64
        return _reduce(torch.nn.functional.softplus(lead, threshold=40.0), self.reduction)

    def extra_repr(self) -> str:
        return f"k={self.k}, reduction={self.reduction!r}"


def _checked_reduction(reduction: str) -> str:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, _REDUCTIONS))}, got {reduction!r}")
    return reduction


def _check_shapes(scores: Tensor, target: Tensor) -> None:
    if scores.ndim != 2 or target.ndim != 1 or len(scores) != len(target):
        raise ValueError(
            "scores must have the shape (batch, classes) and target the shape (batch,), "
            f"got {tuple(scores.shape)} and {tuple(target.shape)}"
        )


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
