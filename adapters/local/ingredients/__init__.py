"""A packaged data set: lines of cooking recipes, each with a JSON object of its parts."""
