"""What one run leaves: records, their schema and store, where they were measured, and which may be compared."""
