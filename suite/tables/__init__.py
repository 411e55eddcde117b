"""Records become tables.

`rows` merges the rounds of a system. A row is a line of raw numbers; `columns` names, defines and formats them.
`settings` has headings and captions, `verdict` the sentence that follows from the numbers, and `comparison` makes a
sheet of all. A `sheet` is written as Markdown, CSV and LaTeX, shown in a `terminal`, and on the page of the report.
`statistics` has the intervals, `formatting` the formats of numbers.
"""
