"""What operators see: stderr records, the JSONL request log, metrics."""
