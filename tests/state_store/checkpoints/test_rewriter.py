"""A restore changes Spark's files to what the new checkpoint is."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from pyspark_ckpt.state_store.checkpoints.query.rewriter import LogRewriter

FILE = "state/0/_stateSchema/default/0_a"


@pytest.mark.parametrize(
    ("before", "target", "after"),
    [
        ("file:/old/query", "/new place/q", "file:/new place/q"),
        ("file:/state/0/_stateSchema/q", "/new", "file:/new"),
        ("hdfs://one:8020/q", "hdfs://two/deep/q", "hdfs://two/deep/q"),
        ("file:/old/query", "s3a://bucket/q", "s3a://bucket/q"),
        ("file:/old/query", "s3://bucket/q", "s3a://bucket/q"),
        ("s3a://old/q", "s3://bucket/q", "s3a://bucket/q"),
        ("s3://old/q", "s3://bucket/q", "s3://bucket/q"),
        ("s3a://old/q", "/new/", "file:/new"),
    ],
)
def test_schemas_of_transform_with_state_are_those_of_the_new_checkpoint(before: str, target: str, after: str) -> None:
    stores = [{"numPartitions": 2, "stateSchemaFilePaths": [f"{before}/{FILE}", f"{before}/{FILE}b"]}]
    changed = rewritten(stores, target)
    assert changed == [{"numPartitions": 5, "stateSchemaFilePaths": [f"{after}/{FILE}", f"{after}/{FILE}b"]}]


def test_a_path_of_another_form_stays() -> None:
    stores = [{"numPartitions": 2, "stateSchemaFilePaths": ["file:/elsewhere/schemas/0_a"]}, {"numPartitions": 2}]
    changed = rewritten(stores, "/new")
    assert changed == [
        {"numPartitions": 5, "stateSchemaFilePaths": ["file:/elsewhere/schemas/0_a"]},
        {"numPartitions": 5},
    ]


def rewritten(stores: Sequence[object], target: str) -> object:
    rewriter = LogRewriter(3, 5, {}, "id", target)
    entry = json.dumps({"operatorInfo": {"operatorId": 0, "operatorName": "x"}, "stateStoreInfo": stores})
    changed = rewriter("state/0/_metadata/v2/0", b"v2\n" + entry.encode(), "there")
    version, text = changed.split(b"\n")
    assert version == b"v2"
    return json.loads(text)["stateStoreInfo"]
