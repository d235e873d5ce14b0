"""What a call of the optimizer costs, and an epoch with it."""
