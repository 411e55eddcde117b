"""Records of runs: their schema and store, the environment they were measured in, and which may be compared."""
