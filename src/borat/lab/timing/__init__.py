"""Timing: the cost of an optimizer's call, and of an epoch with it."""
