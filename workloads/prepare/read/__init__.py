"""Raw files, text or Parquet, to frames of typed columns; errors name file, line or row, and column."""
