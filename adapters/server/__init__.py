"""A server of the Tinker API over any training client, for the SDK on your own machine."""
