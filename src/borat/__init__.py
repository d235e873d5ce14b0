"""BORAT: a stochastic bundle method for training neural networks without tuning learning rates."""

from borat.bundle import StepInfo
from borat.dual import DualSolution, solve_dual
from borat.free import FreeBORAT
from borat.optimizer import ALIG, BORAT

__all__ = ["ALIG", "BORAT", "DualSolution", "FreeBORAT", "StepInfo", "solve_dual"]
__version__ = "0.1.0"
