"""Two runs side by side, cell by cell: what became slower, larger or different, and whether that is more than noise."""
