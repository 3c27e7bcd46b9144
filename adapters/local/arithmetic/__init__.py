"""A packaged data set: sums, differences and products of two digits."""
