"""What a user can mend, told as a sentence."""


class DataError(ValueError):
    """Input, output or prepared data that the user can put right; the message says how."""
