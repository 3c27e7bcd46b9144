"""Runs: their records, locks, status and execution."""
