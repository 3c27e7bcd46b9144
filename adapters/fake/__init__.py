"""Stand-ins that really work, in memory: every port without a file, a network or a graphics card."""
