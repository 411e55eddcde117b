"""What a dataset looks like to a cache: sizes, skew, reuse and working sets of its rows."""
