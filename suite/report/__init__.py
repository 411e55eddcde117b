"""What gets published: `sheets`, `figures` and the `page`, from records alone; `contests` compares within equal bytes."""
