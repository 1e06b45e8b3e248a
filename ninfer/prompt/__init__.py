"""Conversation to prepared prompt: template, tokens, positions, media, frontiers."""
