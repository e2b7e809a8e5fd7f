"""How the partitions of an operator share its keys, as its stores show it."""

from __future__ import annotations

import msgspec
import pytest

from pyspark_ckpt.state_store.checkpoints.layout import Layout, find_layout
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor, StoreMeta


def _store(*descriptors: Descriptor) -> StoreMeta:
    """A store with a state of each descriptor."""
    meta = EMPTY_META
    for number, descriptor in enumerate(descriptors):
        meta, _ = meta.with_state(f"state {number}", descriptor)
    return msgspec.structs.replace(meta, num_partitions=1)


_GLOBAL = Descriptor(key_schema={"type": "struct", "fields": []})
_BY_KEY = Descriptor(key_schema={"type": "struct", "fields": [{"name": "k", "type": "integer"}]})


@pytest.mark.parametrize(
    ("name", "partitions", "in_use", "metas", "layout"),
    [
        ("stateStoreSave", 1, 1, [_store(_GLOBAL)], Layout.SINGLE),
        ("stateStoreSave", 1, 1, [_store(_BY_KEY)], Layout.REMAINDERS),
        ("stateStoreSave", 4, 1, [_store(_BY_KEY)], Layout.SINGLE),
        ("globalLimit", 1, 1, [_store()], Layout.SINGLE),
        # The second of two keyed operators, before it has had a row.
        ("applyInPandasWithState", 1, 1, [_store()], Layout.REMAINDERS),
        ("applyInPandasWithState", 2, 2, [_store(), _store()], Layout.REMAINDERS),
    ],
)
def test_the_layout_follows_from_the_states_of_the_stores(
    name: str, partitions: int, in_use: int, metas: list[StoreMeta], layout: Layout
) -> None:
    assert find_layout(name, partitions, in_use, metas) is layout
