"""Rows saved to go on from: checkpoints that can be copied, and commits of a directory of rows."""
