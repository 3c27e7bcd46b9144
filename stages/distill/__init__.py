"""Distillation: teachers, on-policy and off-policy."""
