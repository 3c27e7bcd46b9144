"""Reports of runs, comparisons and sweeps: one tree of sections, and a renderer for each format."""
