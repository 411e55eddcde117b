"""Which system, with how large a cache: predicted from costs measured apart, and from simulated misses."""
