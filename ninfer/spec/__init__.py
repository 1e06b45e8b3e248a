"""Drafters: propose, verify, rewind."""
