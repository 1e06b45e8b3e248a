"""Hugging Face checkpoints of the qwen3_5 family to version 3 artifacts, in bounded memory."""
