"""Windows to batches, and batches to a rank's, while they are still integers."""
