"""What can be restored, by the names of the objects that are there."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pyspark_ckpt.state_store.blobs import Blob
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import DeltaName, snapshot_name

COMMITS = [EMPTY, *(Marker(version, f"id{version}") for version in range(1, 6))]
DELTAS = [DeltaName(commit, parent) for parent, commit in pairwise(COMMITS)]


def lineage_of(deltas: list[DeltaName], snapshots: list[Marker]) -> Lineage:
    return Lineage.of([Blob(name, 1, 0.0) for name in [*map(str, deltas), *map(snapshot_name, snapshots)]])


def test_bases_come_nearest_first_and_version_0_last() -> None:
    found = lineage_of(DELTAS, [COMMITS[2], COMMITS[4]])
    chains = list(found.chains(COMMITS[5], found.snapshots.__contains__))
    assert chains == [(COMMITS[4], DELTAS[4:]), (COMMITS[2], DELTAS[2:]), (EMPTY, DELTAS)]
    assert found.chain(COMMITS[5], found.snapshots.__contains__) == chains[0]


def test_older_bases_are_not_reached_when_a_delta_is_missing() -> None:
    found = lineage_of(DELTAS[3:], [COMMITS[2], COMMITS[4]])
    assert list(found.chains(COMMITS[5], found.snapshots.__contains__)) == [(COMMITS[4], DELTAS[4:])]
    assert str(COMMITS[3]) in found.find_break(COMMITS[5]).message
    with pytest.raises(NotFoundError, match=r"The delta of .*id3.* is missing"):
        found.chain(COMMITS[5], lambda _marker: False)


def test_the_other_branch_of_a_version_is_no_ancestor() -> None:
    sibling = Marker(4, "other")
    found = lineage_of([*DELTAS, DeltaName(sibling, COMMITS[3])], [sibling])
    assert found.ancestors(COMMITS[5]) == set(COMMITS)
    assert [base for base, _ in found.chains(COMMITS[5], found.snapshots.__contains__)] == [EMPTY]
