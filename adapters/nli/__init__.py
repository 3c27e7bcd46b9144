"""Entailment and sentence similarity by models of transformers."""
