"""What gets published: `sheets`, `figures` and the `page`, of records alone; `standings` compares equal bytes."""
