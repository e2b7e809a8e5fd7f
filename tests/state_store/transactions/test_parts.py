"""What workers declare is what the store has, or is refused: also of the order in which a key has its columns."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor, StoreMeta
from pyspark_ckpt.state_store.redistribution.merged_states import merge_states
from pyspark_ckpt.state_store.transactions.parts import declare

COLUMNS = {"a": "int32", "b": "int32"}
TURNED = {"b": "int32", "a": "int32"}


def _descriptor(columns: Mapping[str, str]) -> Descriptor:
    return Descriptor(key_schema=columns, value_schema={}, key_encoder={"keyed": "it", "max_parallelism": 8})


def _stored(columns: Mapping[str, str]) -> StoreMeta:
    """A store with one state, as it comes back from JSON."""
    meta, _ = declare(EMPTY_META, [("it/n", _descriptor(columns))])
    return msgspec.json.decode(msgspec.json.encode(meta), type=StoreMeta)


def test_key_columns_in_another_order_are_refused_with_both_orders_when_they_are_declared() -> None:
    meta = _stored(COLUMNS)
    assert declare(meta, [("it/n", _descriptor(COLUMNS))])[0] == meta
    with pytest.raises(InvalidInputError, match=r"'it/n' is stored with key_schema \{'a.*'b.* declares \{'b.*'a"):
        declare(meta, [("it/n", _descriptor(TURNED))])


def test_stores_are_not_joined_when_their_key_columns_are_in_another_order() -> None:
    assert len(merge_states([_stored(COLUMNS), _stored(COLUMNS)], "operator 0").states) == 1
    with pytest.raises(InvalidInputError, match=r'operator 0: .* \{"a": .*\} in one partition and \{"b": .*\} in'):
        merge_states([_stored(COLUMNS), _stored(TURNED)], "operator 0")
