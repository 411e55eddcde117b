"""Policies that keep cached rows in queues, by the batch."""
