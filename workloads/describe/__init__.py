"""What a dataset looks like to a cache: sizes, skew and working sets of its rows."""

import logging

# torch tells of a function that torchrec calls for every batch; there is nothing to be done about it here
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
