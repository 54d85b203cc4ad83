"""The main job on text that every machine has."""
