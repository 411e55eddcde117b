"""Decides which rows enter and leave a cache: numbers in, numbers out."""
