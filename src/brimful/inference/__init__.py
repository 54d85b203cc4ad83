"""Results in input order."""
