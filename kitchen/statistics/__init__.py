"""Statistics of evaluations, as functions of arrays: confidence intervals, significance tests."""
