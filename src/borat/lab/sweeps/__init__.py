"""Sweeps: grids of settings, the jobs that they make, and the engines that run these."""
