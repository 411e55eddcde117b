"""Records become rows, sections, Markdown, CSV and a terminal's text."""
