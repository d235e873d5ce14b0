"""Passes over the parameters: C kernels for the CPU, PyTorch operations for everything else."""
