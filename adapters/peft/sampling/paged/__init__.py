"""Decoding by CUDA graphs over a paged KV cache."""
