"""Samples by number: the same verbs as in `rows`, on numbers of rows."""
