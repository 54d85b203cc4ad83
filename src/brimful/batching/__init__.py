"""Rows become windows, windows become batches, a rank takes its own."""
