"""The published figures: one module each, listed in `write`; `panels`, `entries`, `titles` and `words` are shared."""
