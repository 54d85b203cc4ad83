"""A step that runs out of memory is run again in parts."""
