"""A store tokenized by one worker of Ray, by two, and by this process alone, on the cores at hand.

    python benchmarks/ray_tokenise.py [runs]

WikiText-2 from ../shared/data (or $BRIMFUL_TEST_DATA), 16 shards of it, by the tokenizer of GPT-2 itself and by the fastest
engine. Each run is a fresh process with a Ray of its own; they take turns, so that a ratio is of one time of day. Workers have
started and made their tokenizer before the clock starts: what that takes stands beside it.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARDS = 16
ENGINES = ("tokenizer", "auto")
RUNS = 3


def run(folder: Path, engine: str, workers: int, tokenizer: str) -> dict[str, Any]:
    """Seconds to start, and to write the store; by `workers` of Ray, or none."""
    os.environ |= {"RAYON_NUM_THREADS": "1", "RAY_worker_niceness": "0"}  # of 15, workers would wait for all others
    import brimful as bf

    began = time.perf_counter()
    if workers:
        import ray

        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="error")
    by = "ray" if workers else "local"

    def written(urls: str, name: str) -> tuple[int, float]:
        data = bf.from_files(urls, columns=["text"]).tokenize(tokenizer, engine=engine).select("input_ids")
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as store:
            tokens = int(data.to_store(Path(store) / name, executor=by).lengths().sum())
            return tokens, time.perf_counter() - began

    written(str(folder / "small" / "*.jsonl"), "small")
    started = time.perf_counter() - began
    before = resource.getrusage(resource.RUSAGE_SELF)
    tokens, seconds = written(str(folder / "*.jsonl"), "large")
    after = resource.getrusage(resource.RUSAGE_SELF)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "started": started,
        "speed": tokens / seconds / 1e6,
        "own": 1e9 * own / tokens,
        "peak": after.ru_maxrss >> 10,
    }


def main(runs: int) -> None:
    data = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    texts = [gzip.open(name).read() for name in sorted(glob.glob(str(data / "wikitext-2" / "*.jsonl.gz")))]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "small").mkdir()
        for shard in range(SHARDS):
            (Path(folder) / f"{shard:02d}.jsonl").write_bytes(texts[shard % len(texts)])
            (Path(folder) / "small" / f"{shard}.jsonl").write_bytes(texts[0][: texts[0].index(b"\n", 1 << 18) + 1])
        for engine in ENGINES:
            found: dict[int, list[dict[str, float]]] = {0: [], 1: [], 2: []}
            for _ in range(runs):
                for workers in found:
                    arguments = [folder, engine, str(workers), str(data / "tokenizers" / "gpt2.json")]
                    told = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True)
                    found[workers].append(json.loads(told.stdout.splitlines()[-1]))
            for workers, each in found.items():
                median = {name: statistics.median(one[name] for one in each) for name in each[0]}
                what = f"{workers} of Ray" if workers else "this process"
                print(
                    f"engine={engine:<9} {what:<12} {median['speed']:6.2f} M tokens/s; this process {median['own']:5.1f} ns "
                    f"a token, {median['peak']:,.0f} MB; {median['started']:.1f} s to start"
                )
            ratios = [two["speed"] / one["speed"] for one, two in zip(found[1], found[2])]
            print(
                f"engine={engine:<9} two to one: {statistics.median(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)})"
            )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
