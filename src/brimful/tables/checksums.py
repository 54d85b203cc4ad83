"""Checksums of rows: a number a column, over all that the rows hold in it. A replay of the rows must give them again.

They depend on the rows alone: not on the blocks in which these come, nor on how Arrow keeps them (offsets, bits under a null,
dictionaries), nor on the place that a row came from. A column that is null throughout is as one that is not there.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from brimful.tables.origins import HIDDEN, ORIGIN
from brimful.tables.plain import as_plain, plain
from brimful.tables.ragged import fixed_bytes, has_fixed_bytes, has_offsets, null_in, offsets_in

MOST: Final = 8
"""Numbers that a state keeps of some rows. With more columns than that, several share one."""


class RowChecksums:
    """The checksums of rows that come block by block.

    Price: .6 ns a token of 32 bits, 15 us a block and column.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._columns: dict[str, _Values] = {}

    def add(self, block: pa.RecordBatch) -> None:
        """The next rows."""
        for name, array in zip(block.schema.names, block.columns):
            if name != ORIGIN:
                self._columns.setdefault(name, _Values()).add(array, self._rows)
        self._rows += block.num_rows

    def by_column(self) -> dict[str, int]:
        """The checksum of each column that holds a value so far, by name; of rows without a value, one under "".

        >>> rows = pa.RecordBatch.from_pydict({"id": [7, None], "text": ["a", "bc"], "none": [None, None]})
        >>> whole, parts = RowChecksums(), RowChecksums()
        >>> whole.add(rows)
        >>> parts.add(rows.slice(0, 1))
        >>> parts.add(rows.slice(1).drop_columns("none"))
        >>> whole.by_column() == parts.by_column(), [*parts.by_column()]
        (True, ['id', 'text'])
        """
        held = sorted((name, values) for name, values in self._columns.items() if values.some)
        return {name: values.crc(self._rows) for name, values in held} or {"": crc32(str(self._rows).encode())}


def checksums(block: pa.RecordBatch) -> dict[str, int]:
    """Those of the rows of one block; see `RowChecksums`."""
    rows = RowChecksums()
    rows.add(block)
    return rows.by_column()


def in_state(found: dict[str, int]) -> list[int]:
    """Checksums by column as a state keeps them: at most 8 numbers, without the names.

    >>> in_state({"id": 7, "text": 9}), len(in_state(dict.fromkeys("abcdefghij", 7)))
    ([7, 9], 8)
    """
    numbers = [found[name] for name in sorted(found)]
    shared = (numbers[place::MOST] for place in range(min(MOST, len(numbers))))
    return [each[0] if len(each) == 1 else crc32(repr(each).encode()) for each in shared]


def difference(ours: dict[str, int], saved: list[int]) -> str:
    """Which column differs from what a state keeps, with both checksums; "" where none does.

    >>> difference({"id": 7, "text": 9}, [7, 10])
    "column 'text' had the crc32 0000000a then, and has 00000009 now"
    """
    numbers, names = in_state(ours), sorted(ours)
    if len(numbers) != len(saved):
        return f"{len(saved):,} columns had values then, and {len(numbers):,} have some now ({', '.join(names)})"
    for place, (now, then) in enumerate(zip(numbers, saved)):
        if now != then:
            which = " or ".join(repr(name.removeprefix(HIDDEN)) for name in names[place::MOST])
            return f"column {which} had the crc32 {then:08x} then, and has {now:08x} now"
    return ""


class _Values:
    """The values of a column, or of a part of it (the items of lists, the fields of structs): running checksums of the places
    at which nulls begin and end, of sizes, and of bytes by type; and the parts by name."""

    def __init__(self) -> None:
        self.some = False  # of them is not null
        self._count = 0  # values so far
        self._valid = False  # whether the last of them is no null
        self._nulls = self._sizes = self._inside = 0
        self._bytes: dict[str, int] = {}
        self._parts: dict[str, _Values] = {}

    def add(self, array: pa.Array, place: int) -> None:
        """The values from a place on. Those between the last ones and these are null."""
        if not len(array):
            return
        array = _at_hand(array)
        self._nulls = self._changes(place, array)
        self._valid, self._count = array[-1].is_valid, place + len(array)
        if array.null_count < len(array):
            self.some = True
            self._add_values(array.drop_null() if array.null_count else array)

    def crc(self, count: int) -> int:
        """Of all values, which are so many."""
        parts = [(name, part.crc(self._inside)) for name, part in sorted(self._parts.items()) if part.some]
        found = [count, self._changes(count), self._sizes, sorted(self._bytes.items()), parts]
        return crc32(repr(found).encode())

    def _changes(self, place: int, array: pa.Array | None = None) -> int:
        """The checksum of the places at which values begin to be null, or no longer are."""
        changes, valid = [], self._valid
        if place > self._count and valid:
            changes, valid = [self._count], False
        if array is not None and array.null_count:
            null = null_in(array)
            changes += (np.flatnonzero(np.diff(null, prepend=not valid)) + place).tolist()
        elif array is not None and not valid:
            changes.append(place)
        return crc32(np.array(changes, dtype=np.int64).data, self._nulls) if changes else self._nulls

    def _add_values(self, values: pa.Array) -> None:
        """Values without a null."""
        kind = values.type
        if pa.types.is_struct(kind):
            parts = zip((field.name for field in kind), values.flatten())
            self._add_parts(dict(parts), len(values))
        elif pa.types.is_fixed_size_list(kind):
            self._sizes = crc32(np.full(len(values), kind.list_size, dtype=np.int64).data, self._sizes)
            self._add_parts({"item": values.flatten()}, len(values) * kind.list_size)
        elif has_offsets(kind) or pa.types.is_map(kind):
            offsets = offsets_in(values)
            first, last = offsets[[0, -1]].tolist()
            self._sizes = crc32(np.diff(offsets).data, self._sizes)
            if pa.types.is_map(kind):
                self._add_parts({"key": values.keys[first:last], "value": values.items[first:last]}, last - first)
            elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
                self._add_parts({"item": values.values[first:last]}, last - first)
            else:
                self._add_bytes("text", np.frombuffer(values.buffers()[2] or b"", np.uint8)[first:last].data)
        elif has_fixed_bytes(kind):
            self._add_bytes(str(kind), fixed_bytes(values).data)
        else:
            self._add_bytes(str(kind), "".join(f"{value!r}," for value in values.to_pylist()).encode())

    def _add_parts(self, parts: dict[str, pa.Array], count: int) -> None:
        for name, part in parts.items():
            self._parts.setdefault(name, _Values()).add(part, self._inside)
        self._inside += count

    def _add_bytes(self, kind: str, memory: memoryview | bytes) -> None:
        self._bytes[kind] = crc32(memory, self._bytes.get(kind, 0))


def _at_hand(array: pa.Array) -> pa.Array:
    """Values as they are, where they are kept in another way: extensions, dictionaries, runs, views."""
    if isinstance(array, pa.ExtensionArray):
        return _at_hand(array.storage)
    return as_plain(array, plain(array.type)) if array.type.id in _KEPT_OTHERWISE else array


_KEPT_OTHERWISE: Final = {
    kind.id
    for kind in (
        pa.dictionary(pa.int8(), pa.int8()),
        pa.run_end_encoded(pa.int16(), pa.int8()),
        *(pa.string_view(), pa.binary_view(), pa.list_view(pa.int8()), pa.large_list_view(pa.int8())),
    )
}
