"""Sweeps: grids of values, their jobs, and the engines that run the jobs."""
