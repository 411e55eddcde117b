"""A module of systems that needs a package nobody has."""

import no_such_package_anywhere  # noqa: F401
