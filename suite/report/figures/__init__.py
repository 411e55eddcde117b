"""The published figures."""
