"""Tasks: rewards, games and environments."""
