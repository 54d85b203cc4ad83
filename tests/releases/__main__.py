"""Writes what this release leaves behind: see chains.py. States name functions by their module, and `__main__` has none."""

import brimful as bf
from tests.releases.chains import HERE, write

write(HERE / bf.__version__)
