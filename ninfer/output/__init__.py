"""Token ids to typed deltas: detokeniser, channels, stop strings, tool calls.  Pure."""
