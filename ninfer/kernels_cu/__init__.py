"""CUDA sources, and the machinery that turns them into launchable kernels.

``arrays``  device addresses with a shape and a kind
``source``  one ``.cu`` with its includes, parsed signatures and declared variants
``build``   NVRTC (or nvcc) to a cubin, with a cache on disk
``driver``  the few driver calls that load and launch
``pack``    the library: compile, or open an ahead-of-time pack; checked launches

Nothing here needs CuPy or a GPU until a kernel is loaded.
"""
