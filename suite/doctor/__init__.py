"""What on a machine would spoil a benchmark. Everything is read, nothing is changed."""
