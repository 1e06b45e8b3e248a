"""Benchmarks that need no model file."""
