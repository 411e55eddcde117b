"""Measures on this machine what each part of a training step costs, in a process of its own."""
