"""The page of results: `page` fills the templates in `sections/`; the other modules make what they show.

`measurements`, `budget` and `behind` have a script of the same name beside them.
"""
