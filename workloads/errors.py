"""The error for what a user can put right."""


class DataError(ValueError):
    """Input, output or prepared data are not as they must be; the message says what the user can do about it."""
