"""What savepoints and restores read: what it was, or refused by its name; nothing leads out of a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.cli.savepoints import _row
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, fetch
from pyspark_ckpt.state_store.checkpoints.digests import Digest, combine
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF, read_partitions
from pyspark_ckpt.state_store.checkpoints.query.proof import QueryFile
from pyspark_ckpt.state_store.checkpoints.query.rewriter import LogRewriter
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import seal, seal_json
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.assembly import Assembled
from pyspark_ckpt.state_store.redistribution.copy_task import Copied, CopiedObject
from pyspark_ckpt.state_store.redistribution.jobs import DONE_FOLDER, RecordedTask, _Done
from pyspark_ckpt.state_store.redistribution.splitting import Split
from pyspark_ckpt.state_store.savepoints.restoring.request import (
    FinishedRequest,
    ProvenState,
    RecordedRequest,
    Restored,
)
from pyspark_ckpt.state_store.savepoints.savepoint import (
    SavedOperator,
    SavedState,
    SavedStore,
    SavepointInfo,
    read_info,
)
from tests.fuzz.mutations import damaged, damaged_json, fuzzed, read_or_refuse

HASH = "12" * 16
DIGEST = Digest(7, HASH)
INFO = SavepointInfo(
    1,
    "native",
    1_700_000_000_000,
    "pyspark-ckpt 1",
    "q",
    "/checkpoint",
    5,
    2,
    (SavedOperator(0, "dedupe", ("default",), 2, "one partition", ("u",), (SavedState("default", "u/s", 3, True),)),),
    (SavedStore(0, 1, "default", "ab" * 16, 3, 500),),
    (QueryFile("metadata", 9, HASH),),
)
RUN = StoredFile("_ckpt/restore/runs/0-default/1/0-0-01234567.sst", 20, HASH)
REQUEST = RecordedRequest("/saved", "q", 5, 2, {"a": "b"}, "q2", False, "")
RESULT = Restored("/new", "q2", 5, 2, (ProvenState(0, "default", "s", DIGEST),), 10, 20)


def any_sealed(value: Any) -> st.SearchStrategy[bytes]:  # noqa: ANN401
    """What an object may have become, by rot or by somebody who knows how it is sealed."""
    return damaged(seal(value)) | damaged_json(json.loads(msgspec.json.encode(value))).map(seal_json)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


def put(folder: Path, name: str, content: bytes) -> LocalPlace:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return LocalPlace(folder)


@fuzzed
@given(content=any_sealed(INFO))
def test_what_a_savepoint_says_of_itself_leads_nowhere_else(content: bytes, folder: Path) -> None:
    place = put(folder, "savepoint.json", content)
    found = read_or_refuse(lambda: read_info(place), content, "savepoint.json")
    if found is not None:
        assert all(_row(found))
        for store in found.stores:
            below = Path("/saved", store_folder(Identity(store.operator, store.partition, store.name)))
            assert below.resolve().is_relative_to("/saved/state")


RESULTS: tuple[tuple[Any, Any], ...] = (
    (Copied([CopiedObject("sst/a", 3)]), Copied),
    (Assembled({"s": DIGEST}, 3, 4), Assembled),
    ({"s": DIGEST}, dict[str, Digest]),
    (Split({"s": DIGEST}, {1: [RUN]}), Split),
)


class RunAgain:
    """A task that has been done. What is recorded of another request is not its result."""

    key = "made-up"

    def __call__(self) -> None:
        raise FormatError("made-up.json is of another request")


@pytest.mark.parametrize("number", range(len(RESULTS)))
@fuzzed
@given(data=st.data())
def test_a_recorded_result_is_a_result_or_refused(number: int, data: st.DataObject, folder: Path) -> None:
    value, kind = RESULTS[number]
    task = RecordedTask(Workplace(parse({})), RunAgain(), str(folder), kind, HASH)
    put(folder, f"{DONE_FOLDER}/made-up.json", seal(_Done(value, HASH)))
    assert task() == value  # a type is looked into but once
    content = data.draw(any_sealed(_Done(value, HASH)))
    place = put(folder, f"{DONE_FOLDER}/made-up.json", content)
    found = read_or_refuse(task, content, "made-up.json")
    if isinstance(found, (Split, Assembled)):
        combine([found.digests, found.digests])
    for run in (each for runs in found.runs.values() for each in runs) if isinstance(found, Split) else ():
        with pytest.raises(CkptError):
            fetch(place, run, folder / "fetched")


def test_a_run_file_of_a_name_that_leads_out_of_the_target_is_refused(folder: Path) -> None:
    (folder / "outside").write_bytes(b"x")
    for name in ("../outside", "/etc/hostname", "a/../../outside"):
        with pytest.raises(InvalidInputError, match="is not the name of an object"):
            fetch(LocalPlace(folder / "target"), StoredFile(name, 1, HASH), folder / "fetched")


@pytest.mark.parametrize("number", range(2))
@fuzzed
@given(data=st.data())
def test_what_a_restore_has_noted_is_that_or_refused(number: int, data: st.DataObject, folder: Path) -> None:
    value: Any = (REQUEST, FinishedRequest(REQUEST, RESULT))[number]
    content = data.draw(any_sealed(value))
    place = put(folder, "noted.json", content)
    read_or_refuse(lambda: read_sealed(place, "noted.json", type(value)), content, "noted.json")


CONF = {PARTITIONS_CONF: "2"}
LOGS: dict[str, tuple[bytes, Any, bytes]] = {
    "metadata": (b"", {"id": "7f4a9a0e"}, b""),
    "offsets/4": (b"v1\n", {"batchWatermarkMs": 0, "batchTimestampMs": 5, "conf": CONF}, b'\n{"logOffset":4}'),
    "commits/4": (b"v2\n", {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [["a"], ["b"]]}}, b""),
    "state/0/_metadata/metadata": (
        b"v1\n",
        {
            "operatorInfo": {"operatorId": 0, "operatorName": "dedupe"},
            "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
        },
        b"",
    ),
}


@pytest.mark.parametrize("name", LOGS)
@fuzzed
@given(data=st.data())
def test_a_log_of_spark_is_rewritten_or_refused(name: str, data: st.DataObject, folder: Path) -> None:
    head, entry, tail = LOGS[name]
    valid = head + json.dumps(entry).encode() + tail
    content = data.draw(damaged(valid) | damaged_json(entry).map(lambda body: head + body + tail))
    place = put(folder, name, content)
    where = f"{place.url}/{name}"
    change: Callable[[str, bytes, str], bytes] = LogRewriter(4, 3, {"0": [["c"], ["d"], ["e"]]}, "new", "/new")
    read_or_refuse(lambda: change(name, content, where), content, name)
    if name == "offsets/4":
        found = read_or_refuse(lambda: read_partitions(place, 4), content, name)
        assert found is None or found < 10**9
