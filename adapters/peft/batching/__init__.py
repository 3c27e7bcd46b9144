"""Batching: from datums to packed micro-batches."""
