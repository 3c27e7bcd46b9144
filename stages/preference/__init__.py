"""Preference optimisation: comparisons, DPO and KTO."""
