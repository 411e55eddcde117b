"""Memory that systems need at each cache size, and the least time of a step on described hardware."""
