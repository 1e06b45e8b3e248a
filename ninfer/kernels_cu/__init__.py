"""CUDA sources, their signatures, and the cubin pack."""
