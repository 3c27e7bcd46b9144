"""Statistics of evaluations: intervals and tests, as functions of arrays."""
