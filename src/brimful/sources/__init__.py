"""Files read forward: one file a format, one reader of bytes."""
