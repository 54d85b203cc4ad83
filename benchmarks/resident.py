"""What a process holds while a stream goes by: JSON lines to padded batches, tokenized on the fly.

    python benchmarks/resident.py [millions of samples] [engine: cache, gigatoken, tokenizer or auto] [share of new words]

Text is generated: 20 words a sample on average, drawn by Zipf's law from 100,000; of a share of them, 0 by default, each comes
only once. The tokenizer is a byte-level BPE that is trained on some of it. Resident memory is printed for each million samples,
the mean after each batch with its growth since the first million, beside what Arrow, malloc and Python say that they hold.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import brimful as bf

SHARD = 100_000
WORDS = 100_000
LETTERS = 9
BUDGET = 16_384


def words(numbers: np.ndarray) -> np.ndarray:
    """Words by number, uint8 (n, LETTERS + 1), a space at the end of each: bytes that are 0 are not there."""
    letters = np.empty((len(numbers), LETTERS + 1), dtype=np.uint8)
    hashed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for place in range(LETTERS):
        hashed ^= hashed >> np.uint64(29)
        hashed *= np.uint64(0xBF58476D1CE4E5B9)
        letters[:, place] = ord("a") + hashed % np.uint64(26)
    letters[:, :-1][np.arange(LETTERS) >= 2 + hashed[:, None] % np.uint64(LETTERS - 1)] = 0
    letters[:, -1] = ord(" ")
    return letters


def write(folder: str, shards: range, new: float) -> None:
    table, first_new = words(np.arange(WORDS)), WORDS + shards.start * SHARD * 40
    for shard in shards:
        random = np.random.default_rng(shard)
        lengths = random.geometric(1 / 20, SHARD)
        count = int(lengths.sum())
        numbers = (WORDS ** random.random(count)).astype(np.int64) - 1  # the n-th comes about 1 / n as often
        letters = table[numbers]
        once = np.flatnonzero(random.random(count) < new)
        letters[once] = words(first_new + np.arange(len(once)))
        first_new += len(once)
        letters[np.cumsum(lengths) - 1, -1] = ord("\n")
        texts = letters[letters > 0].tobytes()[:-1].replace(b"\n", b'"}\n{"text": "')
        (Path(folder) / f"{shard:05}.jsonl").write_bytes(b'{"text": "' + texts + b'"}\n')


def trained(folder: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with open(f"{folder}/00000.jsonl") as lines:
        tokenizer.train_from_iterator(
            [json.loads(next(lines))["text"] for _ in range(5000)],
            trainers.BpeTrainer(
                vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
            ),
        )
    return tokenizer


def resident() -> float:
    """MB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Info(ctypes.Structure):
    """Of glibc: malloc.h, struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def main() -> None:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    engine = sys.argv[2] if len(sys.argv) > 2 else "cache"
    new = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Info
    with tempfile.TemporaryDirectory() as folder:
        writer = multiprocessing.get_context("spawn").Process(
            target=write, args=(folder, range(millions * 1_000_000 // SHARD), new)
        )
        writer.start()
        writer.join()
        data = bf.from_files(folder + "/*.jsonl", shuffle_shards=True).tokenize(trained(folder), engine=engine)
        batches = data.batch_by_tokens(BUDGET, window=10_000)
        print(f"{engine}, Arrow's memory by {pa.default_memory_pool().backend_name}")
        print(
            "millions   resident MB   since the first   of Arrow   of malloc used, free   objects   seconds of processor"
        )
        held: list[list[float]] = [[]]
        with batches.iter() as it:
            for _ in it:
                held[-1].append(resident())
                if it.stats.samples >= len(held) * 1_000_000:
                    mean, info = statistics.mean(held[-1]), libc.mallinfo2()
                    print(
                        f"{len(held):8}   {mean:11.1f}   {mean / statistics.mean(held[0]) - 1:15.1%}   {max(held[-1]):7.1f}   "
                        f"{pa.total_allocated_bytes() / 1e6:8.1f}   {(info.used + info.hblkhd) / 1e6:14.1f}, "
                        f"{info.free / 1e6:6.1f}   {len(gc.get_objects()):7,}   {time.process_time():10.1f}",
                        flush=True,
                    )
                    held.append([])


if __name__ == "__main__":
    main()
