"""Keeps the rows of a cache: in host memory, page-locked memory or a file."""
