"""Statistics of evaluations, as pure functions of arrays.

`comparison` chooses an interval, a test and an effect size for the data at hand; the other modules
have the methods that it chooses from.
"""
