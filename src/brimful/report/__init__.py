"""The cost of padding: the same lengths planned by each policy, side by side, and a recommendation.

`compare` plans, `to_json` and `to_html` write what it found. Every number comes from the batches that the loader
itself would plan; no token is moved.
"""

from brimful.report.compare import RECOMPILE_LIMIT, Advice, Outcome, Report, Settings, Spread, compare
from brimful.report.document import to_html, to_json
from brimful.report.lengths import Lengths, count_tokens, read_lengths

__all__ = [
    "RECOMPILE_LIMIT",
    "Advice",
    "Lengths",
    "Outcome",
    "Report",
    "Settings",
    "Spread",
    "compare",
    "count_tokens",
    "read_lengths",
    "to_html",
    "to_json",
]
