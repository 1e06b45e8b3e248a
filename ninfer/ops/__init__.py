"""One vocabulary of fused operations (verbs), two bodies: NumPy and CUDA."""
