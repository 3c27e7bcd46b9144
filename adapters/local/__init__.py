"""This machine: blobs in a folder or behind fsspec, data sets in files, models from wheels and
folders.
"""
