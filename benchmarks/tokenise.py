"""Plain JSONL to padded batches, tokenised on the fly, beside the tokenizer alone on the same text and cores.

    python benchmarks/tokenise.py [tokenizer.json] [shards ...]

By default WikiText-2 and bert-base-cased from ../shared/data (or $BRIMFUL_TEST_DATA), repeated to about ten seconds' work.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

import brimful as bf

REPEATS = 4
RUNS = 3
TRUNCATION = {"truncation": True, "max_length": 512}


def limit(tokenizer: Tokenizer, texts: list[str]) -> int:
    """`encode_batch_fast` and nothing else; the text is in memory."""
    tokens = 0
    for first in range(0, len(texts), 4096):
        tokens += sum(map(len, tokenizer.encode_batch_fast(texts[first : first + 4096])))
    return tokens


def ours(tokenizer: Tokenizer, files: list[str]) -> int:
    batches = bf.from_files(files).tokenize(tokenizer, tokenizer_kwargs=TRUNCATION).batch_by_tokens(16_384)
    with batches.iter() as it:
        for _ in it:
            pass
        return int(it.stats.tokens)


def speed(run: Callable[[], int]) -> float:
    began = time.perf_counter()
    return run() / (time.perf_counter() - began) / 1e6


def main() -> None:
    data = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = sys.argv[1] if len(sys.argv) > 1 else str(data / "tokenizers" / "bert-base-cased.json")
    shards = sys.argv[2:] or sorted(glob.glob(str(data / "wikitext-2" / "*.jsonl.gz")))
    if not shards or not os.path.exists(path):
        sys.exit(f"no data at {data}: name a tokenizer.json and shards of JSON lines")
    tokenizer = Tokenizer.from_file(path)
    alone = Tokenizer.from_file(path)
    alone.enable_truncation(TRUNCATION["max_length"])
    with tempfile.TemporaryDirectory() as folder:
        texts = []
        files = [os.path.join(folder, f"{number:02}.jsonl") for number in range(REPEATS)]
        for name in files:
            with open(name, "wb") as out:
                for shard in shards:
                    lines = (gzip.open if shard.endswith(".gz") else open)(shard, "rb").read()
                    out.write(lines)
                    texts += [json.loads(line)["text"] for line in lines.splitlines()]
        print(f"{platform.machine()}, {os.cpu_count()} cores; {len(texts):,} lines; medians of {RUNS} runs in turn")
        limits, reached = [], []
        for _ in range(RUNS):
            limits.append(speed(lambda: limit(alone, texts)))
            reached.append(speed(lambda: ours(tokenizer, files)))
    ratio = statistics.median(one / other for one, other in zip(reached, limits, strict=True))
    print(f"encode_batch_fast alone       {statistics.median(limits):6.2f} M tokens/s")
    print(f"JSONL to padded batches       {statistics.median(reached):6.2f} M tokens/s   {ratio:.1%} of the limit")


if __name__ == "__main__":
    main()
