"""Arrays to torch tensors, without a copy; devices, losses, attention, and what a collate_fn makes."""
