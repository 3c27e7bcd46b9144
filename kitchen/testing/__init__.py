"""The laws of each port, as pytest classes to subclass for any adapter."""
