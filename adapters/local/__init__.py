"""Adapters for this machine: blobs in folders or fsspec, data in files, models in wheels."""
