"""NInfer: a small local LLM server for one GPU (or none), without PyTorch.

Importing the package loads nothing heavy: every room is imported where it is needed.
"""

__version__ = "0.1.0"
