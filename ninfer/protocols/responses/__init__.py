"""OpenAI Responses: typed items, semantic events and local state."""
