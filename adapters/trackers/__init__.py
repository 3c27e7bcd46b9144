"""Adapters of trackers: trackio, Weights & Biases, TensorBoard and MLflow."""
