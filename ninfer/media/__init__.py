"""Bounded acquisition, decoding and caching of images and video."""
