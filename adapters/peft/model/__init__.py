"""The model: its layers, LoRA and attention."""
