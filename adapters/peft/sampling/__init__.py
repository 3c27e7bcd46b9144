"""Sampling: scheduling, KV caches and decoding."""
