"""Training and sampling on this machine: torch, transformers and PEFT."""
