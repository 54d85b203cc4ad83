"""The cost of padding: the same lengths planned by each policy, side by side, and a recommendation.

`compare.py` plans as the loader would, and moves no token. `document.py` writes what it found.
"""
