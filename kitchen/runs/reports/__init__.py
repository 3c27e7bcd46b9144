"""The content of reports and model cards, and what both show of a run."""
