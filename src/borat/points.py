"""The points of BORAT's bundle: the centre that an update starts from, and the trial points where pieces are measured.

A view's state has the centre, the gradients of the pieces so far, and the velocity. Where a bundle has a single linear
piece, the weights themselves are the centre, and no gradient is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from borat.parameters import View
from borat.vectors import combine, move, move_with_momentum


def clear_rows(view: View, position: int) -> None:
    """The pieces so far did not depend on the parameters that join with this batch."""
    if position:
        for slot, matrix in zip(view.part.slots, view.part.matrices, strict=True):
            if not slot.state["active"]:
                matrix[:position].zero_()


def join(view: View, position: int) -> None:
    """Let all parameters take part in the open bundle."""
    if view.rows:
        for slot, centre, weights in zip(view.part.slots, view["centre"], view.weights, strict=True):
            if position and not slot.state["active"]:
                centre.copy_(weights)
            slot.state["active"] = 1


def leave(view: View) -> None:
    if view.rows:
        for slot in view.part.slots:
            slot.state["active"] = 0


def to_trial(view: View, steps: Sequence[float], *, replay: bool = False) -> None:
    """Put the weights at ``centre - sum of step * gradient`` and keep the gradient of the last piece in its row.

    The first gradient is measured at the centre, so that the weights are there, and are kept as the centre. To
    ``replay`` is to come back to this trial point later, when the gradient is in its row and the weights are anywhere.
    """
    last = len(steps) - 1
    vectors = [*view.rows[:last], view.rows[last] if replay else view.gradients]
    terms = [(steps[k], x) for k, x in enumerate(vectors) if steps[k] or k == last]
    is_first = last == 0 and not replay
    move(
        view.weights,
        view.weights if is_first else view["centre"],
        terms,
        view.backend,
        old_base=view["centre"] if is_first else None,
        last_term=None if replay else view.rows[last],
    )


def move_centre(view: View, steps: Sequence[float], momentum: float, *, flush: bool) -> None:
    """``u = -sum of step * gradient; v = momentum * v + u; weights = centre + u + momentum * v``.

    The gradient of the last piece is the parameters' own; to ``flush`` is to end early, when it is in its row.
    """
    last = len(steps) - 1
    terms = [(steps[k], view.rows[k]) for k in range(last) if steps[k]]
    if steps[last] or not terms:
        terms.append((steps[last], view.rows[last] if flush else view.gradients))
    centre = view["centre"] if view.rows else view.weights
    if "velocity" not in view.part.kept:
        move(view.weights, centre, terms, view.backend)
        return
    states = [slot.state for slot in view.part.slots]
    scale = states[0]["velocity_scale"]
    velocity = view["velocity"]
    scale = move_with_momentum(view.weights, centre, terms, velocity, view.backend, momentum=momentum, scale=scale)
    for state in states:
        state["velocity_scale"] = scale


def to_centre(view: View) -> None:
    """Put the weights at the centre."""
    combine(view["centre"], out=view.weights)
