"""The Hugging Face Hub: models, data sets, and publishing of results."""
