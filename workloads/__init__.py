"""Datasets as batches: prepared from raw files, or drawn by their statistics."""


class DataError(ValueError):
    """Input, output or prepared data are not as they must be; the message says what the user can do about it."""
