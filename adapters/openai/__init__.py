"""The adapter of servers with OpenAI's API."""
