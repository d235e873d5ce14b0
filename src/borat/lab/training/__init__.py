"""Training one model: batch, loss, step, metrics, checkpoint."""
