"""The laws of each port, as pytest classes that anyone's adapter subclasses."""
