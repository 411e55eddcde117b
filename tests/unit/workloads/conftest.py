"""The scripts of tests/bench import one another by their plain names, as when they are run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
