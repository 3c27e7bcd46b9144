"""The OpenAI API over the models, checkpoints and runs of the server."""
