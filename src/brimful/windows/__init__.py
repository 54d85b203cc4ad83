"""Rows to windows: n lengths to plan over, held or looked up."""
