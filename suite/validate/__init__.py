"""Checks record files: against the published schema of their version, then what no schema can say."""
