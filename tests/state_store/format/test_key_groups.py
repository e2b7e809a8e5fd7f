"""Key groups: every hash is of one group, every group of one partition, and a manifest says which are in it."""

from __future__ import annotations

import json

import pytest

from pyspark_ckpt.state_store.format.key_groups import HASHES, describe_groups, find_hashes, find_owned_groups
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor
from tests.labs.lab import Lab


@pytest.mark.parametrize(("partitions", "parallelism"), [(1, 1), (1, 32768), (3, 128), (7, 7), (200, 32768), (16, 100)])
def test_ranges_of_groups_and_hashes_have_no_gap_and_agree_with_the_route(partitions: int, parallelism: int) -> None:
    end = 0
    for partition in range(partitions):
        first, behind = find_owned_groups(partition, partitions, parallelism)
        assert first == end
        assert all(group * partitions // parallelism == partition for group in {first, behind - 1} if first < behind)
        low, high = find_hashes((first, behind), parallelism)
        for value in {low, high - 1}:
            if low < high:
                assert (value * parallelism >> 32) * partitions // parallelism == partition
        end = behind
    assert end == parallelism
    assert find_hashes((0, parallelism), parallelism) == (0, HASHES)


def test_a_manifest_of_keyed_state_has_the_groups_of_its_partition() -> None:
    descriptor = Descriptor(ordered=False, multiple_values=False, internal=False, key_encoder={"max_parallelism": 128})
    meta, _ = EMPTY_META.with_state("views", descriptor, keyed=True)
    assert describe_groups(meta.commit("a", {}, 4), 3) == (128, (96, 128))


def manifest_groups(lab: Lab) -> list[tuple[int, list[int]]]:
    manifests = [json.loads((lab.remote / name).read_bytes()) for name in lab.objects(".snapshot")]
    return [(manifest["max_parallelism"], manifest["key_groups"]) for manifest in manifests]


def test_a_manifest_of_native_state_has_all_groups(lab: Lab) -> None:
    lab.grow_with_snapshots(2)
    assert manifest_groups(lab) == [(32768, [0, 32768])]
