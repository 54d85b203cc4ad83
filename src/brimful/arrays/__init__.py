"""Batches to dicts of numpy arrays: columns by name and type, layouts. No torch."""
