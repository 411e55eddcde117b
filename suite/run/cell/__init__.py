"""The worker process of one cell: support check, verification, build, training, evaluation and the Belady bound."""
