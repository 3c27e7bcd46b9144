"""Read-only web pages over the folders of runs."""
