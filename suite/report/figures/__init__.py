"""The published figures: one module each, listed in `write`; `panels`, `entries`, `families` and `words` are shared."""
