"""Randomness as a function of (key, counter): nothing to save, nothing to restore. So are, while a function of the user's runs,
the generators that it draws from.

The hash is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014),
written out here because a library generator may change its permutations from one release to the next
and the order of the data is part of brimful's interface.
"""

from __future__ import annotations

import math
import random as python
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .once import once

GOLDEN: Final = 0x9E3779B97F4A7C15
"""2^64 times (sqrt(5) - 1) / 2."""
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_MASK: Final = 0xFFFFFFFFFFFFFFFF
CACHED: Final = 1 << 13
"""So many 64-bit values are hashed at a time, as a core keeps them in its cache."""
DIGIT_SORTED: Final = range(1 << 10, 1 << 20)
"""So many hashes are ordered by their upper 16 bits first where numpy's own sort is slower: on AMD's Zen 4 that takes three times
as long, on Zen 5 a third; on another one as long for 16,384, and half for 131,072."""
_TRIES: Final = 3
_SECONDS: Final[dict[int, tuple[list[float], list[float]]]] = {}
"""What each of the first `_TRIES` calls of `_by_digits` and of `_by_numpy` took for a hash, by the bits of their number."""


def key(*parts: int) -> int:
    """A 64-bit key from any number of integers: (seed, place in the chain, epoch, window number).

    >>> key(42, 0, 0) != key(42, 0, 1) != key(42, 1, 0)
    True
    """
    state = len(parts) * GOLDEN & _MASK
    for part in parts:
        state = _mix((state ^ _mix(int(part) & _MASK)) + GOLDEN & _MASK)
    return state


def hashes(key: int, count: int, first: int = 0) -> NDArray[np.uint64]:
    """`count` 64-bit hashes of `key` from number `first` on, shape (count,): hash i depends on (key, i) alone.

    Price: about 3 ns a hash, vectorised.
    """
    numbers = np.arange(first, first + count, dtype=np.uint64)
    numbers *= np.uint64(GOLDEN)
    numbers += np.uint64(key + GOLDEN & _MASK)
    return _mixed_in_place(numbers)


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit hash of each of some 64-bit values, shape (n,). Price: about 3 ns a value, vectorised."""
    return _mixed_in_place(values + np.uint64(GOLDEN))


def _mixed_in_place(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for first in range(0, len(values), CACHED):
        x = values[first : first + CACHED]
        for bits, factor in ((30, _MIX_1), (27, _MIX_2)):
            x ^= x >> np.uint64(bits)
            x *= np.uint64(factor)
        x ^= x >> np.uint64(31)
    return values


def checksum(values: NDArray[np.int64]) -> int:
    """32 bits of some integers and of the order in which they are, shape (n,). Price: 1 ns a value, a fourth of a CRC's.

    >>> checksum(np.array([1, 2, 3])) == checksum(np.array([1, 2, 3])) != checksum(np.array([2, 1, 3]))
    True
    """
    return int(values @ _factors(len(values).bit_length())[: len(values)]) >> 32 & 0xFFFFFFFF


@lru_cache(maxsize=4)
def _factors(bits: int) -> NDArray[np.int64]:
    """A random factor for each place."""
    return hashes(0, 1 << bits).view(np.int64)


def permutation(count: int, key: int) -> NDArray[np.int64]:
    """A permutation of range(count), shape (count,): the stable argsort of `count` hashes of `key`.

    Each hash gives its low bits to its own number, so that one sort of unique integers is that argsort.

    Price: about 12 ns an element.

    >>> permutation(5, key=7).tolist() == permutation(5, key=7).tolist()
    True
    >>> sorted(permutation(5, key=7).tolist())
    [0, 1, 2, 3, 4]
    """
    if count < 2:
        return np.arange(count)
    low = np.uint64((1 << count.bit_length()) - 1)
    numbered = np.arange(count, dtype=np.uint64)
    for first in range(0, count, CACHED):
        hashed = hashes(key, min(CACHED, count - first), first)
        hashed &= ~low
        numbered[first : first + CACHED] |= hashed
    numbered = _in_order(numbered)
    numbered &= low
    return numbered.view(np.int64)


def _by_digits(hashed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes in ascending order. Hardly a pair is out of order after the upper 16 bits, and timsort mends these as it goes."""
    digits = (hashed >> np.uint64(48)).astype(np.uint16)
    found: NDArray[np.uint64] = hashed.take(digits.argsort(kind="stable"))
    found.sort(kind="stable")
    return found


def _in_order(hashed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes in ascending order, perhaps in place, by the faster of two ways, which both give the same. Which one that is depends
    on the processor and on how many there are: each is timed in its first calls."""
    if len(hashed) not in DIGIT_SORTED:
        return _by_numpy(hashed)
    by_digits, by_numpy = _SECONDS.setdefault(len(hashed).bit_length(), ([], []))
    tries = by_digits if len(by_digits) < len(by_numpy) else by_numpy
    if len(tries) >= _TRIES:  # two threads may have tried at once
        return _by_digits(hashed) if min(by_digits) < min(by_numpy) else _by_numpy(hashed)
    began = time.perf_counter()
    found = _by_digits(hashed) if tries is by_digits else _by_numpy(hashed)
    tries.append((time.perf_counter() - began) / len(hashed))
    return found


def _by_numpy(hashed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    hashed.sort()
    return hashed


def generator(key: int) -> np.random.Generator:
    """A numpy generator for one row of a user's function: the same for the same key, whatever ran before."""
    return np.random.Generator(np.random.Philox(key=key))


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * _MIX_1 & _MASK
    x = (x ^ (x >> 27)) * _MIX_2 & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class KeyedPermutation:
    """A permutation of range(count) of which any part can be computed alone, for any count.

    Called with places, int64 (n,), it returns which numbers stand there. A Feistel network of four rounds over two digits
    of base about sqrt(count); places that fall outside range(count) walk on until they are inside, which less than one
    in sqrt(count) does. Below 4,096 the digits would be too short to mix: there it is `permutation`.

    Price: 30 to 50 ns a number, vectorised; no memory that grows with count.
    Source: Luby, Rackoff: How to construct pseudorandom permutations, 1988; Black, Rogaway: Ciphers with arbitrary finite
        domains, 2002; the 32-bit mixing function is the one that Wellons found by search (lowbias32, 2018).

    >>> KeyedPermutation(10**9, key=7)(np.arange(3)).tolist() == KeyedPermutation(10**9, key=7)(np.arange(3)).tolist()
    True
    """

    count: int
    key: int

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._whole[places] if self.count < _SHORT else self._walk(places, forward=True)

    def inverse(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places at which numbers stand, int64 (n,)."""
        return np.argsort(self._whole)[numbers] if self.count < _SHORT else self._walk(numbers, forward=False)

    @once
    def _whole(self) -> NDArray[np.int64]:
        return permutation(self.count, self.key)

    @once
    def _rounds(self) -> NDArray[np.uint32]:
        return (hashes(self.key, 4) >> np.uint64(32)).astype(np.uint32)

    def _walk(self, numbers: NDArray[np.int64], forward: bool) -> NDArray[np.int64]:
        out = np.empty(len(numbers), dtype=np.int64)
        for at in range(0, len(numbers), _CHUNK):
            piece = self._network(numbers[at : at + _CHUNK], forward)
            while len(outside := np.flatnonzero(piece >= self.count)):
                piece[outside] = self._network(piece[outside], forward)
            out[at : at + _CHUNK] = piece
        return out

    def _network(self, numbers: NDArray[np.int64], forward: bool) -> NDArray[np.int64]:
        high_base = math.isqrt(self.count - 1) + 1
        low_base = -(-self.count // high_base)
        quotients = numbers // low_base
        low = (numbers - quotients * low_base).astype(np.uint32)
        high = quotients.astype(np.uint32)
        for number in range(4) if forward else reversed(range(4)):
            if number % 2:
                low = _rotated(low, high, low_base, self._rounds[number], forward)
            else:
                high = _rotated(high, low, high_base, self._rounds[number], forward)
        return high.astype(np.int64) * low_base + low


_SHORT: Final = 4096
_CHUNK: Final = 1 << 14  # numbers that stay in the cache from one step to the next


def _rotated(
    digit: NDArray[np.uint32], other: NDArray[np.uint32], base: int, key: np.uint32, forward: bool
) -> NDArray[np.uint32]:
    """A digit moved on (or back), modulo its base, by what the other digit hashes to."""
    x = other ^ key
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    by = ((x.astype(np.uint64) * np.uint64(base)) >> np.uint64(32)).astype(np.int64)
    moved = digit + (by if forward else base - by)
    return np.where(moved >= base, moved - base, moved).astype(np.uint32)


# -- functions that draw from whatever generators they know --------------------------------------------------------------

_SEEDS: Final = (1 << 32) - 1
"""The largest seed that numpy's global generator takes."""


@contextmanager
def seeded(by: int, own: list[Any]) -> Iterator[None]:
    """Within, the generators that a process has (Python's, numpy's, torch's of the CPU) draw by the key `by`; afterwards they are
    as before. Those of the function's own (`generators_of`) draw by the key from now on.

    Price: 40 us.
    """
    torch: Any = sys.modules.get("torch")
    before = python.getstate(), np.random.get_state(), None if torch is None else torch.random.get_rng_state()
    python.seed(key(by, 0))
    np.random.seed(key(by, 1) & _SEEDS)
    if torch is not None:
        torch.default_generator.manual_seed(key(by, 2) >> 1)
    for number, generator in enumerate(own, 3):
        _seed(generator, key(by, number))
    try:
        yield
    finally:
        python.setstate(before[0])
        np.random.set_state(before[1])
        if torch is not None:
            torch.random.set_rng_state(before[2])


def generators_of(fn: Callable[..., Any]) -> list[Any]:
    """The generators among the attributes of an object that is called, or whose method is.

    One that a Hugging Face collator makes at its first call, of its `seed`, is made now.

    >>> class Noise:
    ...     def __init__(self): self.rng = np.random.default_rng(0)
    ...     def __call__(self, samples): return self.rng.random()
    >>> generators_of(Noise())
    [Generator(PCG64) at 0x...]
    """
    owner = getattr(fn, "__self__", fn)
    if getattr(owner, "seed", None) is not None and getattr(owner, "generator", 0) is None:
        getattr(owner, "create_rng", lambda: None)()
    return [*{id(value): value for value in getattr(owner, "__dict__", {}).values() if _is_generator(value)}.values()]


def _is_generator(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    known = (python.Random, np.random.Generator, np.random.RandomState, *(() if torch is None else (torch.Generator,)))
    return isinstance(value, known)


def _seed(generator: Any, key: int) -> None:
    if isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        bits.state = type(bits)(key).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(key & _SEEDS)
    elif isinstance(generator, python.Random):
        generator.seed(key)
    else:
        generator.manual_seed(key >> 1)
