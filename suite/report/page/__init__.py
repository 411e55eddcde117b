"""The page of results: `page` fills the templates in `sections/`; the other modules make what they show.

`measurements` and `behind` have a script of the same name beside them.
"""
