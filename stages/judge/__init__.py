"""Judges: reward models trained on comparisons, and the rewards that they give."""
