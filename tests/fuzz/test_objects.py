"""Objects in a checkpoint, damaged in every way: each is read as what it was, or refused by its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.state_store.attempts.commit_log import read_ids
from pyspark_ckpt.state_store.attempts.runs import Epochs
from pyspark_ckpt.state_store.attempts.winners import declare_winner
from pyspark_ckpt.state_store.blobs import LocalPlace, place_at
from pyspark_ckpt.state_store.blobs.s3 import place as s3  # noqa: F401 - what loading it takes is no reader's
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.ownership import other_owner
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, StorageError
from pyspark_ckpt.state_store.format import names
from pyspark_ckpt.state_store.format.delta import MAX_META_BYTES, read_delta, read_meta, write_delta
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.manifest import Manifest, ManifestFile, decode, inline_file
from pyspark_ckpt.state_store.format.meta import Descriptor, StateMeta, StoreMeta
from pyspark_ckpt.state_store.format.remote import find_place, query_id
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import MAX_PARTITIONS, seal_json
from pyspark_ckpt.state_store.options import parse
from tests.fuzz.mutations import any_damage, damaged, damaged_json, fuzzed, read_or_refuse

COMMIT = Marker(7, "ab" * 16)
SCHEMA = {"type": "struct", "fields": [{"name": "user", "type": "integer", "nullable": True, "metadata": {}}]}
STORE = StoreMeta(
    version=7,
    id=COMMIT.id,
    parent="cd" * 16,
    num_partitions=2,
    counter=2,
    states=(
        StateMeta(1, "default", 12, Descriptor(key_schema=SCHEMA, value_schema=SCHEMA)),
        StateMeta(0x8002, "timers", 3, Descriptor(ordered=True, key_schema=SCHEMA)),
        StateMeta(0x4000, "it/seen", 5, Descriptor(value_schema={"value": {"schemas": ["long"], "current": 1}})),
    ),
    keyed_counter=1,
)
TABLE = ManifestFile(
    "000012.sst", 1000, "12" * 32, "34" * 16, f"sst/{'12' * 32}-0123abcd.sst", first_key=b"a", last_key=b"z", rows=20
)
MANIFEST = Manifest(
    1,
    STORE,
    32768,
    (0, 32768),
    (TABLE, inline_file("CURRENT", b"MANIFEST-000005\n"), inline_file("MANIFEST-000005", bytes(range(200)))),
)


@fuzzed
@given(damaged(MANIFEST.encode()))
def test_a_manifest_is_what_was_written_or_refused(content: bytes) -> None:
    found = read_or_refuse(lambda: decode(content, "place/x.snapshot"), content, "place/x.snapshot")
    assert found is None or found == MANIFEST


@fuzzed
@given(
    damaged_json(json.loads(MANIFEST.encode()) | {"xxh3": "gone"}).map(seal_json)
    | damaged_json({key: value for key, value in json.loads(MANIFEST.encode()).items() if key != "xxh3"}).map(seal_json)
)
def test_a_manifest_that_somebody_made_names_no_file_elsewhere(content: bytes) -> None:
    found = read_or_refuse(lambda: decode(content, "place/x.snapshot"), content, "place/x.snapshot")
    for file in () if found is None else found.files:
        assert Path("/folder", file.name).resolve().parent == Path("/folder")
        assert file.data is not None or names.is_table_object(str(file.object_name))


@pytest.mark.parametrize("said", [b"", b"../db/MANIFEST-000005\n", b"MANIFEST-000006\n", b"MANIFEST-\xff\n"])
def test_a_current_file_that_leads_elsewhere_is_refused(said: bytes) -> None:
    files = (TABLE, inline_file("CURRENT", said), inline_file("MANIFEST-000005", b"x"))
    with pytest.raises(FormatError, match="not that of a database folder"):
        decode(Manifest(1, STORE, 32768, (0, 32768), files).encode(), "x")


def test_a_flipped_bit_of_a_manifest_is_seen_by_its_checksum() -> None:
    """Such as that which gives a state another number, under which there are no rows."""
    content = MANIFEST.encode()
    assert decode(content, "x").store == STORE
    for bit in range(0, len(content) * 8, 13):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            decode(bytes(changed), "x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


DELTA = names.DeltaName(COMMIT, Marker(6, STORE.parent))


@pytest.fixture(scope="module")
def delta(folder: Path) -> bytes:
    """A delta of two files; nobody opens them here."""
    made = folder / "made"
    for name, content in (("a", b"table a" * 40), ("b", b"table b" * 3)):
        (folder / name).write_bytes(content)
    write_delta(LocalPlace(made), DELTA, STORE, [folder / "a", folder / "b"])
    return (made / str(DELTA)).read_bytes()


Rewrite = Callable[[bytes], None]


def read_both(folder: Path, content: bytes) -> tuple[Any, Any]:
    """What the two readers of deltas make of it: all of it, and what it says of its store."""
    place = LocalPlace(folder / "damaged")
    path = folder / "damaged" / str(DELTA)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    fetched = folder / f"fetched-{len(list(folder.iterdir()))}"

    def whole() -> tuple[StoreMeta, list[bytes]]:
        found = read_delta(place, DELTA, len(content), fetched)
        assert all(file.parent == fetched for file in found.files)
        return found.store, [file.read_bytes() for file in found.files]

    meta = read_or_refuse(lambda: read_meta(place, DELTA, len(content)), content, str(DELTA), MAX_META_BYTES)
    return read_or_refuse(whole, content, str(DELTA), MAX_META_BYTES), meta


@fuzzed
@given(data=st.data())
def test_a_delta_is_what_was_written_or_refused(data: st.DataObject, delta: bytes, folder: Path) -> None:
    whole, meta = read_both(folder, data.draw(damaged(delta)))
    assert whole is None or whole == (STORE, [b"table a" * 40, b"table b" * 3])
    assert meta is None or meta.store == STORE


def objects_in(checkpoint: Path) -> Iterator[tuple[str, bytes, Callable[[], object]]]:
    """Small objects of a checkpoint: their names, valid content, and what reads them."""
    place, who = LocalPlace(checkpoint), Identity(0, 0, "default")
    store = LocalPlace(checkpoint / "state" / "0" / "0")
    operator = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
    }
    commit = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [["ab" * 16], ["cd" * 16]]}}
    winner = {"format": 1, "version": 7, "id": "ab" * 16, "run_id": "run"}
    pointer = {"place": "s3://bucket/state/0/0"}
    yield "metadata", json.dumps({"id": "7f4a9a0e-0000-4000-8000-123456789abc"}).encode(), lambda: query_id(place)
    yield "state/0/0/remote.json", json.dumps(pointer).encode(), lambda: find_place(place, who, place_at, "")
    run = json.dumps({"format": 1, "run_id": "run"}).encode()
    yield "_ckpt/runs/0000000001.run", seal_json(run), lambda: Epochs(place).of("run")
    name = str(names.WinnerName(7, 1))
    yield f"state/0/0/{name}", seal_json(json.dumps(winner).encode()), lambda: declare_winner(store, COMMIT, 1, "run")
    yield "commits/6", b"v2\n" + json.dumps(commit).encode(), lambda: read_ids(place, 7)
    yield "state/0/_metadata/metadata", b"v1\n" + json.dumps(operator).encode(), lambda: operators_of(checkpoint)
    owner = json.dumps({"format": 1, "checkpoint": str(checkpoint), "real": str(checkpoint)}).encode()
    yield "owner.json", seal_json(owner), lambda: other_owner(place, place)


def operators_of(checkpoint: Path) -> object:
    (checkpoint / "metadata").write_text('{"id": "7f4a9a0e"}')
    return Checkpoint(str(checkpoint), parse({})).operators()


@pytest.mark.parametrize("number", range(7))
@fuzzed
@given(data=st.data())
def test_a_small_object_is_read_or_refused_by_its_name(number: int, data: st.DataObject, folder: Path) -> None:
    checkpoint = folder / str(number)
    name, valid, read = list(objects_in(checkpoint))[number]
    path = checkpoint / name
    path.parent.mkdir(parents=True, exist_ok=True)
    head, _, body = valid.rpartition(b"\n")
    lines = head + b"\n" if head else b""
    document = json.loads(body)
    finish = seal_json if document.pop("xxh3", "") else bytes
    path.write_bytes(valid)
    read()  # makes what is made once in a process: decoders are not the memory of a damaged object
    content = data.draw(damaged(valid) | damaged_json(document).map(lambda body: lines + finish(body)))
    path.write_bytes(content)
    read_or_refuse(read, content, name)


@pytest.mark.parametrize("number", range(6))
def test_the_valid_small_objects_are_read(number: int, folder: Path) -> None:
    name, valid, read = list(objects_in(folder / "valid"))[number]
    path = folder / "valid" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(valid)
    assert read()


@pytest.mark.parametrize("query", ["../../elsewhere", "..", "a/b", "", "x" * 200, "a\0"])
def test_a_query_id_that_leads_out_of_the_remote_folder_is_refused(query: str, folder: Path) -> None:
    place = LocalPlace(folder / "escape")
    place.put("metadata", json.dumps({"id": query}).encode())
    with pytest.raises(FormatError, match="metadata"):
        query_id(place)


@pytest.mark.parametrize("store", ["../../elsewhere", "..", "a/b", ""])
def test_a_store_name_that_leads_out_of_the_checkpoint_is_refused(store: str, folder: Path) -> None:
    entry = {"operatorInfo": {"operatorId": 0, "operatorName": "x"}}
    stores = [{"storeName": store, "numPartitions": 1}]
    place = LocalPlace(folder / "stores")
    place.put("state/0/_metadata/metadata", b"v1\n" + json.dumps({**entry, "stateStoreInfo": stores}).encode())
    with pytest.raises(FormatError, match="_metadata/metadata"):
        operators_of(folder / "stores")


def test_more_partitions_than_there_can_be_are_not_looked_for(folder: Path) -> None:
    entry = {"operatorInfo": {"operatorId": 0, "operatorName": "x"}}
    stores = [{"storeName": "default", "numPartitions": MAX_PARTITIONS + 1}]
    place = LocalPlace(folder / "partitions")
    place.put("state/0/_metadata/metadata", b"v1\n" + json.dumps({**entry, "stateStoreInfo": stores}).encode())
    with pytest.raises(FormatError, match="_metadata/metadata"):
        operators_of(folder / "partitions")


def test_files_of_other_names_are_no_runs_and_no_batches(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    for name in (
        "_ckpt/runs/notes.run",
        "_ckpt/runs/\u0661\u0662.run",
        "commits/\u00b2",
        "commits/notes",
        "commits/5.tmp",
    ):
        place.put(name, b"")
    place.put("commits/3", b"v1\n{}")
    place.put("metadata", b'{"id": "q"}')
    assert Epochs(place).of("run") == 1
    assert Checkpoint(str(tmp_path), parse({})).newest_version == 4


@pytest.mark.parametrize("content", [b"{}", b'{"format": 1, "version": 7, "id": "ab", "run_id": "run"}'])
def test_an_object_that_decides_is_refused_without_a_checksum(content: bytes, tmp_path: Path) -> None:
    """Or a byte changed in the checksum itself would have the rest believed."""
    LocalPlace(tmp_path).put(str(names.WinnerName(7, 1)), content)
    with pytest.raises(FormatError, match="winner is damaged: it does not end with its checksum"):
        declare_winner(LocalPlace(tmp_path), COMMIT, 1, "run")
    with pytest.raises(FormatError, match="checksum"):
        decode(MANIFEST.encode().rpartition(b",")[0] + b"}", "x")


@pytest.mark.parametrize("changed", [{"format": 2}, {"version": 8}, {"id": "../x"}])
def test_a_winner_object_that_cannot_be_of_its_name_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    winner = {"format": 1, "version": 7, "id": COMMIT.id, "run_id": "run", **changed}
    LocalPlace(tmp_path).put(str(names.WinnerName(7, 1)), seal_json(json.dumps(winner).encode()))
    with pytest.raises(FormatError, match="winner"):
        declare_winner(LocalPlace(tmp_path), COMMIT, 1, "run")


@fuzzed
@given(any_damage(msgspec.json.encode(STORE)))
def test_what_is_known_of_a_store_is_consistent_or_refused(content: bytes) -> None:
    from pyspark_ckpt.state_store.json_objects import decode_as

    found = read_or_refuse(lambda: decode_as(content, StoreMeta, "x.json"), content, "x.json")
    if found is not None:
        assert found.rows >= 0
        assert len({state.number for state in found.states}) == len(found.states)
        found.commit("a", {}, None).marker.encode()


_NAMES = tuple(
    map(str, (DELTA, names.WinnerName(7, 3), names.snapshot_name(COMMIT), TABLE.object_name, names.run_name(3)))
)


@fuzzed
@given(st.sampled_from(_NAMES).flatmap(lambda name: damaged(name.encode())) | st.binary(max_size=300))
def test_a_name_is_one_that_is_written_or_not_ours(content: bytes) -> None:
    name = content.decode("utf-8", errors="surrogateescape")
    found = names.parse(name)
    if found is not None:
        assert name == (names.snapshot_name(found) if isinstance(found, Marker) else str(found))
        assert "/" not in name
    epoch = names.parse_epoch(name)
    assert epoch is None or name == names.run_name(epoch)
    if names.is_table_object(name) or names.is_delta_file(name):
        assert name.isascii()
        assert ".." not in name


def test_digits_of_other_scripts_make_no_name() -> None:
    """Which would be read as a number, and written as another name."""
    arabic = str(DELTA).replace("7", "\u0667", 1)
    assert names.parse(arabic) is None
    assert not names.is_delta_file("\u0660\u0661\u0662\u0663.sst")


def test_a_version_that_spark_cannot_count_is_not_ours() -> None:
    assert names.parse(f"{2**63 - 1:020d}-a.snapshot") == Marker(2**63 - 1, "a")
    assert names.parse(f"{2**63:020d}-a.snapshot") is None


@pytest.mark.parametrize(
    "uri", ["/a\0", "file:///a\0", "s3://b/\0", "s3a://b/\0", "hdfs://\udc80/", "hdfs://h/\0", "s3://[/x"]
)
def test_a_uri_that_no_place_can_have_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInputError, match="State cannot be stored"):
        place_at(uri)


@fuzzed
@given(
    st.sampled_from(("/a/b", "file:///a%20b", "file:/a", "s3://bucket/prefix", "s3a://b", "hdfs://h/x")).flatmap(
        lambda uri: damaged(uri.encode()).map(lambda content: content.decode("utf-8", errors="surrogateescape"))
    )
    | st.text(max_size=40)
)
def test_a_place_has_a_url_that_leads_to_it_or_is_refused(uri: str) -> None:
    try:
        place = place_at(uri)
    except InvalidInputError:
        return
    place_at(place.url)
    if isinstance(place, LocalPlace):
        assert place.url.startswith("/")
        with suppress(StorageError):  # a file may have the name
            place.list("no such folder")
