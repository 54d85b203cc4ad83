"""An index on disk: Arrow files with the lengths of their rows beside them."""
