"""Configuration: settings with their sources, recipe discovery, adapter choice."""
