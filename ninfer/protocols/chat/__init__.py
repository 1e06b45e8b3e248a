"""OpenAI Chat Completions: JSON to a conversation, typed deltas to JSON and SSE."""
