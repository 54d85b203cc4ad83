"""Writes what this release leaves behind: see chains.py. States name functions by their module, and `__main__` has none."""

from tests.releases.chains import write

write()
