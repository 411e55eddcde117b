"""Records become tables.

`rows` merges the rounds of a system, `columns` lists what is shown of a row, `settings` says what was run, `verdict`
what follows from the numbers, and `comparison` makes a sheet of them. A `sheet` is written as Markdown, CSV and LaTeX,
shown in a `terminal`, and on the page of the report. `statistics` has the intervals and the ranking, `quantities` how
numbers are written.
"""
