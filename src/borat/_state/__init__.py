"""The optimizer's state: per parameter, in checkpoints, on devices, over several processes."""
