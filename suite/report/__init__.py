"""What gets published: `sheets`, `figures` and the `page`, of records alone; `contests` compares within equal bytes."""
