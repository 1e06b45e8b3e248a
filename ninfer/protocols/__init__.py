"""The wire dialects: JSON shapes to conversations, deltas to JSON and SSE.  Sees no tensor."""
