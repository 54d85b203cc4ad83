"""Blocks of rows, and the stages that make others of them: one file a verb."""
