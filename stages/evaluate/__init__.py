"""Evaluation: held-out scores before and after training."""
