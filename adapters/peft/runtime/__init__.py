"""The runtime: worker threads, lanes and CPU features."""
