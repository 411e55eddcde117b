"""A module of systems that cannot be imported."""

raise RuntimeError("no licence file found: set FROB_LICENCE")
