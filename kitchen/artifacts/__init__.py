"""Artifacts: weights by name, model cards, publishing."""
