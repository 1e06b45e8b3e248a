"""The .ninfer container: read v1, v2, v3; write v3; convert from Hugging Face checkpoints."""
