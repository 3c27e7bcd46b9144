"""Runtime: threads, lanes, and the capabilities of the processor."""
