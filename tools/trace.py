"""How much code one row runs on its way: functions, files and classes of brimful, by room.

    python tools/trace.py [path of a checkout]

One line of JSON is read by `from_files`, tokenized, batched by tokens and taken as tensors. What runs from `iter` to the end of
the data is counted, in all threads; what runs before is not. tools/trace.md has the tables of 4bb199a and of today.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TRACED = """
import json, sys, tempfile, threading
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

import brimful as bf

seen = set()


def note(frame, event, argument):
    if event == "call":
        seen.add(frame.f_code)


with tempfile.TemporaryDirectory() as folder:
    Path(folder, "one.jsonl").write_text(json.dumps({"text": "one row"}) + "\\n")
    tokenizer = Tokenizer(models.WordLevel({"one": 0, "row": 1}, unk_token="one"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    batches = bf.from_files(folder + "/one.jsonl").tokenize(tokenizer).batch_by_tokens(64)
    threading.setprofile_all_threads(note) if hasattr(threading, "setprofile_all_threads") else threading.setprofile(note)
    sys.setprofile(note)
    (batch,) = batches
    sys.setprofile(None)
    threading.setprofile(None)
root = str(Path(bf.__file__).parent)
ours = [code for code in seen if code.co_filename.startswith(root)]
print(json.dumps([[code.co_filename[len(root) + 1:], code.co_qualname] for code in ours]))
"""


def traced(checkout: Path) -> list[tuple[str, str]]:
    """Each function that ran: its file in the package, and its qualified name."""
    command = [sys.executable, "-c", TRACED]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(checkout / "src")}, capture_output=True, text=True, check=True
    )
    return [(file, name) for file, name in json.loads(done.stdout)]


def table(found: list[tuple[str, str]]) -> str:
    """Functions, files and classes by room, as Markdown. A comprehension or a lambda belongs to the function around it."""
    rooms: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for file, name in found:
        room = file.split("/")[0] if "/" in file else "top"
        functions, files, classes = rooms.setdefault(room, (set(), set(), set()))
        outer = [part for part in name.split(".") if part != "<locals>" and not part.startswith("<")]
        if not outer:
            continue
        functions.add(f"{file}:{'.'.join(outer)}")
        files.add(file)
        if outer[0].lstrip("_")[:1].isupper():
            classes.add(f"{file}:{outer[0]}")
    lines = ["| room | functions | files | classes |", "|---|---|---|---|"]
    for room, counts in sorted(rooms.items(), key=lambda item: -len(item[1][0])):
        lines.append(f"| {room} | " + " | ".join(f"{len(one):,}" for one in counts) + " |")
    totals = (sum(len(counts[which]) for counts in rooms.values()) for which in range(3))
    return "\n".join([*lines, "| in all | " + " | ".join(f"{one:,}" for one in totals) + " |"])


if __name__ == "__main__":
    print(table(traced(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])))
