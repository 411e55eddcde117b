"""What a dataset looks like to a cache: sizes, skew and working sets of its rows."""
