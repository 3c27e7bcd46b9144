"""A packaged data set: one line of a cooking recipe, and the JSON object that says what it asks
for.
"""
