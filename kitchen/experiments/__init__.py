"""Experiments: many runs of one recipe, with a ledger of what was done and what is left."""
