"""Several devices: one process for each, which compute parts of a batch and sum their gradients."""
