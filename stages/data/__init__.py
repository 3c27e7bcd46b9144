"""Data sets: loading, splits, mixtures and row views."""
