"""The contents of a state, key by key, read in one pass over all its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.operators.types.value_types import hashable

if TYPE_CHECKING:
    from pyspark_ckpt.offline.reading.reader import StateReader
    from pyspark_ckpt.offline.reading.rows.state_codec import Wanted


def read_contents(reader: StateReader) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each key of a keyed operator's state, as a tuple, and what ``reader.get`` returns for it.

    All rows are in memory. Raises as ``StateReader.batches``.
    """
    codec, rows = reader.state.codec(), reader.to_arrow()
    found: dict[tuple[int, bytes], tuple[Wanted, list[int]]] = {}
    for place, key in enumerate(python_values(rows["key"].combine_chunks())):
        wanted = codec.find_wanted(tuple(map(hashable, key)))
        found.setdefault((wanted.hash, wanted.encoded), (wanted, []))[1].append(place)
    for wanted, places in found.values():
        yield wanted.values, codec.build_value(rows.take(pa.array(places)), wanted)
