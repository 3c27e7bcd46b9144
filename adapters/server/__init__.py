"""The Tinker API over any training client, so that the SDK and what is built on it work against
one's own machine.
"""
