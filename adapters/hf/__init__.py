"""The Hugging Face Hub: models and data sets, and results that go back there."""
