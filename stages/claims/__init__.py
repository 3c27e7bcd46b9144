"""Claim extraction: SciFact data, answers as claim lines, and their measures."""
