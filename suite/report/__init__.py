"""Publishes `sheets`, `figures` and the `page`, from records alone."""
