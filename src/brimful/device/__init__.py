"""Any loader's batches on the device before they are needed, in few lengths; steps that have seen every shape."""
