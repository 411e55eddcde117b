"""The page of results: `page` fills the templates in `sections/`; the other modules make what they show.

`behind` has a script of the same name beside it.
"""
