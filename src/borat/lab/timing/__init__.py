"""Timing: the cost of an optimizer's step, and of an epoch with it."""
