"""fbgemm's cache of 32-way sets, tie for tie."""
