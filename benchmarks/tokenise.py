"""JSONL to padded batches, tokenized on the fly, beside `encode_batch_fast` alone on the same text and cores.

    python benchmarks/tokenise.py [runs]
    python benchmarks/tokenise.py memory [millions of tokens]     what an engine keeps of words that never come again

WikiText-2 from ../shared/data (or $BRIMFUL_TEST_DATA), repeated to 20 M tokens, and once, where every word is new: GPT-2 and
bert-base-cased, by each engine that can. Each run is a fresh process, and they take turns, so that a ratio is of one time of
day. Modules are imported before the clock starts; the tokenizer is loaded, the engine made and the first texts audited after.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPEATS = 8
RUNS = 3
MAX_LENGTH = 512
BATCH = 16_384
CASES = (("gpt2", ("auto", "cache")), ("bert-base-cased", ("auto",)))


def limit(tokenizer: str, files: list[str]) -> dict[str, Any]:
    """`encode_batch_fast` and nothing else; the text is in memory."""
    from tokenizers import Tokenizer

    texts = [json.loads(line)["text"] for name in files for line in open(name, "rb")]
    made = Tokenizer.from_file(tokenizer)
    made.enable_truncation(MAX_LENGTH)
    began, busy = time.perf_counter(), time.process_time()
    tokens = 0
    for first in range(0, len(texts), 4096):
        tokens += sum(map(len, made.encode_batch_fast(texts[first : first + 4096])))
    return {"speed": tokens / (time.perf_counter() - began) / 1e6, "busy": (time.process_time() - busy) / tokens * 1e9}


def ours(tokenizer: str, files: list[str], engine: str) -> dict[str, Any]:
    import fsspec.implementations.local  # noqa: F401
    import pyarrow.json  # noqa: F401
    import torch
    from tokenizers import Tokenizer

    import brimful as bf
    import brimful.arrays.explained
    import brimful.batches
    import brimful.read
    import brimful.tensors.in_torch
    from brimful.encoding import compiled

    if compiled.installed():
        import awkward  # noqa: F401
        import gigatoken  # noqa: F401
        import numpy.ma  # noqa: F401  # by awkward, at its first use
    torch.set_num_threads(1)
    made = Tokenizer.from_file(tokenizer)
    began, busy = time.perf_counter(), time.process_time()
    data = bf.from_files(files, columns=["text"]).tokenize(made, truncation=True, max_length=MAX_LENGTH, engine=engine)
    batches = data.batch_by_tokens(BATCH)
    with batches.iter() as it:
        next(it)
        first = time.perf_counter() - began
        state = it.state_dict()
        for _ in it:
            pass
        seconds, tokens = time.perf_counter() - began, int(it.stats.tokens)
        busy = (time.process_time() - busy) / tokens * 1e9
    began = time.perf_counter()
    with batches.iter(state) as it:
        next(it)
    (used,) = it.stats.engines
    return {
        "speed": tokens / seconds / 1e6,
        "busy": busy,
        "first": first,
        "resumed": time.perf_counter() - began,
        "engine": used,
    }


def memory(tokenizer: str, engine: str, tokens: int) -> dict[str, Any]:
    """What a process holds after a tenth, and after all, of a text of which no word comes twice."""
    import numpy as np
    import psutil
    from tokenizers import Tokenizer

    import brimful as bf

    letters, words = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8), 400

    def text() -> Iterator[dict[str, str]]:
        draw = np.random.default_rng(1)
        while True:
            some = letters[draw.integers(0, 26, (words, 11))]
            some[:, 0] = ord(" ")
            yield {"text": some.tobytes().decode()}

    class Endless:
        def __iter__(self) -> Iterator[dict[str, str]]:
            return text()

    held, seen, most = [], 0, 0
    with (
        bf.from_iterable(Endless())
        .tokenize(Tokenizer.from_file(tokenizer), engine=engine, remove_columns="text")
        .iter() as it
    ):
        for sample in it:
            seen += len(sample["input_ids"])
            most = max(most, psutil.Process().memory_info().rss)
            if len(held) < 10 * seen // tokens:
                held.append(round(psutil.Process().memory_info().rss / 1e6))
            if seen >= tokens:
                break
    return {"engine": engine, "tokens": seen, "held_mb": held, "most_mb": round(most / 1e6)}


def child(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    data = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if sys.argv[1:2] == ["memory"]:
        tokens = int(float(sys.argv[2]) * 1e6) if len(sys.argv) > 2 else 100_000_000
        for engine in sys.argv[3:] or ("gigatoken", "cache"):
            print(memory(str(data / "tokenizers" / "gpt2.json"), engine, tokens), flush=True)
        return
    if len(sys.argv) > 2:
        tokenizer, engine, *files = sys.argv[1:]
        print(json.dumps(limit(tokenizer, files) if engine == "limit" else ours(tokenizer, files, engine)))
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    shards = sorted(glob.glob(str(data / "wikitext-2" / "*.jsonl.gz")))
    if not shards:
        sys.exit(f"there is no data at {data}")
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {load}; medians of {runs} runs in turn, each a fresh process"
    )
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, f"{number:02}.jsonl") for number in range(REPEATS)]
        text = b"".join(gzip.open(shard, "rb").read() for shard in shards)
        for name in files:
            Path(name).write_bytes(text)
        for name, engines in CASES:
            tokenizer = str(data / "tokenizers" / f"{name}.json")
            for corpus, words in ((files, f"WikiText-2, {REPEATS} times"), (files[:1], "WikiText-2, once")):
                seen = [{one: child(tokenizer, one, *corpus) for one in ("limit", *engines)} for _ in range(runs)]
                alone, busy = (statistics.median(run["limit"][key] for run in seen) for key in ("speed", "busy"))
                print(
                    f"{name}, {words}: encode_batch_fast alone {alone:.2f} M tokens/s, {busy:,.0f} ns of processors a token",
                    flush=True,
                )
                for engine in engines:
                    speed, own, first, resumed = (
                        statistics.median(run[engine][key] for run in seen)
                        for key in ("speed", "busy", "first", "resumed")
                    )
                    ratio = statistics.median(run[engine]["speed"] / run["limit"]["speed"] for run in seen)
                    less = statistics.median(run["limit"]["busy"] / run[engine]["busy"] for run in seen)
                    print(
                        f"    {seen[0][engine]['engine']:10} {speed:6.2f} M tokens/s, {ratio:5.1f} times; "
                        f"{own:,.0f} ns, {less:.1f} times less; "
                        f"first batch {first:.2f} s, of a resume {resumed:.2f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
