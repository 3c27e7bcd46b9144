"""Points of sweeps as processes of a Ray cluster."""
