"""The programs of `results/` import their neighbours by plain names, as when they are run."""

import sys
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[3] / "results"

sys.path += [str(PROGRAMS / topic) for topic in ("cache", "microbench", "simulate", "streams", "tracks")]
