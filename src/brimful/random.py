"""Randomness as a function of (key, counter): nothing to save, nothing to restore.

The hash is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014),
written out here because a library generator may change its permutations from one release to the next
and the order of the data is part of brimful's interface.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def key(*parts: int) -> int:
    """A 64-bit key from any number of integers: (seed, place in the chain, epoch, window number).

    >>> key(42, 0, 0) != key(42, 0, 1) != key(42, 1, 0)
    True
    """
    state = len(parts) * _GOLDEN & _MASK
    for part in parts:
        state = _mix((state ^ _mix(part & _MASK)) + _GOLDEN & _MASK)
    return state


def hashes(key: int, count: int, first: int = 0) -> NDArray[np.uint64]:
    """`count` 64-bit hashes of `key` from number `first` on, shape (count,): hash i depends on (key, i) alone.

    Price: about 5 ns a hash, vectorised.
    """
    with np.errstate(over="ignore"):
        x = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
        return x ^ (x >> np.uint64(31))


def permutation(count: int, key: int) -> NDArray[np.int64]:
    """A permutation of range(count), shape (count,): the stable argsort of `count` hashes of `key`.

    Price: about 100 ns an element.

    >>> permutation(5, key=7).tolist() == permutation(5, key=7).tolist()
    True
    >>> sorted(permutation(5, key=7).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(hashes(key, count), kind="stable").astype(np.int64, copy=False)


def generator(key: int) -> np.random.Generator:
    """A numpy generator for one row of a user's function: the same for the same key, whatever ran before."""
    return np.random.Generator(np.random.Philox(key=key))


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * _MIX_1 & _MASK
    x = (x ^ (x >> 27)) * _MIX_2 & _MASK
    return x ^ (x >> 31)
