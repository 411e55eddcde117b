"""What simulators replay: ids of batches, from streams, files and arrays."""
