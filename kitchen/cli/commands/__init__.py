"""One module per command: it does the work and returns the exit code."""
