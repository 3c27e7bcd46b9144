"""Hedged requests: a second request if the first is late, within a budget of extra requests."""
