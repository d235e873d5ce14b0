"""Sweeps: grids of values, the jobs that they make, and the engines that run these."""
