"""The first values of states, from the columns of an initial state that have their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.bound.base import Bound, Kept
from pyspark_ckpt.operators.task.user_errors import show
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.encoding.distinct_keys import Keys


def set_values(uid: str, bound: Sequence[Kept], keys: Keys, index: NDArray[Any], rows: pa.Table) -> None:
    """Set what ``rows`` have for the states of ``keys``; ``index``: the position of every row's key.

    ``rows``: without the keys. ``uid``: of the operator.

    Raises InvalidInputError (a key that has several rows, a value that the type of its state does not take).
    """
    counts = np.bincount(index, minlength=len(keys))
    if (counts > 1).any():
        twice = int(np.argmax(counts > 1))
        (key,) = keys.to_python(twice, twice + 1)
        raise InvalidInputError(
            f"Keyed operator {uid!r}: the initial state has {counts[twice]} rows for the key ({show(key)}).",
            hint="Give it one row for each key, by dropDuplicates or an aggregation, or write a method for its rows.",
        )
    in_order = rows.take(pa.array(np.argsort(index)))
    for each in bound:
        if isinstance(each, Bound) and each.name in rows.column_names:
            each.put_contents(keys, in_order.column(each.name).combine_chunks())
