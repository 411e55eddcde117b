"""The simulated ways of caching: one class each."""
