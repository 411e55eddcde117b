"""Checks record files: whether they load, and whether their names and keys are their own."""
