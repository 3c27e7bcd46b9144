"""Training: forward and backward passes, and the optimiser."""
