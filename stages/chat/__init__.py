"""Chat: conversations, templates, masks and tools."""
