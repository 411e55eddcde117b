"""What on a machine would spoil a benchmark, read and never changed."""
