"""Systems that keep fewer numbers than their tables have: quality for bytes. None of them is exact."""
