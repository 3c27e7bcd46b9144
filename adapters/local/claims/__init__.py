"""The packaged claims: short studies, and claims that they support or refute."""
