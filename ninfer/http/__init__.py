"""Bytes to requests and replies to bytes: HTTP/1.1 and SSE on h11.  Knows no language model."""
