"""Passes over the parameters, in C for the CPU and in PyTorch's operations for everything else."""
