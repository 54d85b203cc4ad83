"""Batches to tensors: columns by name, layouts, loss, attention; the only place where payload meets torch."""
