"""The published figures: one module each, listed in `write`; `panels` and `entries` are shared."""
