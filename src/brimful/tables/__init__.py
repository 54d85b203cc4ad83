"""Columnar tools for Arrow record batches: ragged columns, schemas, functions of blocks."""
