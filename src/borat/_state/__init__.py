"""The optimizer's state: for each parameter, in checkpoints, on several devices and processes."""
