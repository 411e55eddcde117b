"""A cell on several ranks: processes that share the tables of a system, and every batch."""
