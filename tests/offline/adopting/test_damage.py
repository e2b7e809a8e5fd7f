"""What is lost or damaged in a checkpoint of Spark is refused, and no row is left out without a word."""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.moving import adopt
from pyspark_ckpt.offline.adopting.recognition import SparkCheckpoint
from pyspark_ckpt.offline.adopting.rows import RowConverter
from pyspark_ckpt.offline.adopting.source import SparkState
from pyspark_ckpt.offline.adopting.stored_rows import read_portions
from pyspark_ckpt.offline.adopting.stores import Form, Step, StoreFiles
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.options import parse

Schema = dict[str, Any]


@pytest.fixture
def copy(checkpoints: Path, older_checkpoints: Path, tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        source = older_checkpoints if "/" in name else checkpoints
        shutil.copytree(source / name, tmp_path / "copy")
        return tmp_path / "copy"

    return make


def _refuses(checkpoint: Path, kind: type[CkptError], said: str) -> None:
    """Nothing is begun in the target."""
    target = checkpoint.with_name("never")
    for parallelism in (None, 1):
        with pytest.raises(kind, match=said):
            adopt(checkpoint, target, parallelism)
        assert not target.exists()


def _change_json(file: Path, change: Callable[[Any], None], line: int = 1) -> None:
    lines = file.read_text().split("\n")
    entry = json.loads(lines[line])
    change(entry)
    lines[line] = json.dumps(entry)
    file.write_text("\n".join(lines))


@pytest.mark.parametrize("name", ["hdfs", "changelog", "format-2", "join-4", "rocksdb/deduplication", "hdfs/join"])
def test_a_lost_partition_is_never_left_out(name: str, copy: Callable[[str], Path]) -> None:
    checkpoint = copy(name)
    shutil.rmtree(checkpoint / "state" / "0" / "2")
    _refuses(checkpoint, NotFoundError, r"state/0/2.* has no file of the state")
    shutil.rmtree(checkpoint / "state" / "0" / "1")
    _refuses(checkpoint, NotFoundError, r"state/0/1.* has no file of the state")


def test_numbers_of_partitions_must_agree(copy: Callable[[str], Path]) -> None:
    checkpoint = copy("hdfs")

    def change(entry: Any) -> None:  # noqa: ANN401 - JSON
        entry["stateStoreInfo"][0]["numPartitions"] = 1

    _change_json(checkpoint / "state" / "0" / "_metadata" / "metadata", change)
    _refuses(checkpoint, FormatError, "has 1 partitions by its metadata, but 3 by the offset log")


@pytest.mark.parametrize("name", ["hdfs", "hdfs/join"])
def test_a_checkpoint_without_state_is_not_moved(name: str, copy: Callable[[str], Path]) -> None:
    checkpoint = copy(name)
    shutil.rmtree(checkpoint / "state")
    _refuses(checkpoint, InvalidInputError, "has no state")


def test_an_operator_that_keeps_all_in_one_partition_has_no_state_in_others(copy: Callable[[str], Path]) -> None:
    checkpoint = copy("hdfs/limit")
    shutil.copytree(checkpoint / "state" / "0" / "0", checkpoint / "state" / "0" / "2")
    _refuses(checkpoint, FormatError, "keeps all its state in partition 0, but there is state of partition 2")


def _write_schema(checkpoint: Path, keys: Schema, values: Schema) -> None:
    def text(content: str) -> bytes:
        return len(content.encode()).to_bytes(2, "big") + content.encode()

    def chunks(schema: Schema) -> bytes:
        return b"\0\0\0\1" + text(json.dumps(schema))

    file = checkpoint / "state" / "0" / "0" / "_metadata" / "schema"
    file.write_bytes(text("v2") + chunks(keys) + chunks(values))


def _struct(**fields: Any) -> Schema:  # noqa: ANN401 - JSON of types
    listed = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": listed}


NAMES = [
    (_struct(key="void"), _struct(value="long"), "globalLimit"),
    (_struct(key="void"), _struct(__dummy__="void"), "dedupe"),
    (_struct(key="void"), _struct(count="long"), "stateStoreSave"),
    (_struct(k="string"), _struct(expiresAtMicros="long"), "dedupeWithinWatermark"),
    (_struct(k="string"), _struct(groupState="long", timeoutTimestamp="long"), "flatMapGroupsWithState"),
    (_struct(k="string"), _struct(groupState=_struct(n="long")), "applyInPandasWithState"),
    (_struct(k="string", sessionStartTime="timestamp"), _struct(count="long"), "stateStoreSave"),
]


@pytest.mark.parametrize(("keys", "values", "name"), NAMES)
def test_operators_are_told_by_keys_and_values(
    keys: Schema, values: Schema, name: str, copy: Callable[[str], Path]
) -> None:
    checkpoint = copy("hdfs/aggregation")
    _write_schema(checkpoint, keys, values)
    assert [each.name for each in SparkCheckpoint(str(checkpoint), parse({})).operators()] == [name]


WRONG: list[tuple[Any, Any]] = [
    ({"type": "struct"}, _struct(count="long")),
    (_struct(k="string"), {"type": "struct", "fields": None}),
    ({"type": "struct", "fields": [{}]}, _struct(count="long")),
    ({"type": "struct", "fields": [None]}, _struct(count="long")),
    (_struct(k="string"), {"type": "struct", "fields": [{"name": "x", "type": "long", "metadata": None}]}),
    (_struct(k="string"), {"type": "struct", "fields": [{"name": "groupState"}]}),
]


@pytest.mark.parametrize(("keys", "values"), WRONG)
def test_a_damaged_schema_is_named(keys: Any, values: Any, copy: Callable[[str], Path]) -> None:  # noqa: ANN401
    checkpoint = copy("hdfs/aggregation")
    _write_schema(checkpoint, keys, values)
    _refuses(checkpoint, CkptError, "schema|types|columns|type")


def test_keys_that_cannot_be_hashed_are_refused_before_anything_is_written(copy: Callable[[str], Path]) -> None:
    checkpoint = copy("hdfs/aggregation")
    collated = _struct(user="string")
    collated["fields"][0]["metadata"] = {"__COLLATIONS": {"user": "icu.UNICODE_CI"}}
    _write_schema(checkpoint, collated, _struct(count="long"))
    _refuses(checkpoint, InvalidInputError, "collation")
    _write_schema(checkpoint, _struct(user="interval"), _struct(count="long"))
    _refuses(checkpoint, InvalidInputError, "its keys cannot be hashed")


def test_values_may_be_of_types_that_are_not_read(copy: Callable[[str], Path]) -> None:
    checkpoint = copy("hdfs/aggregation")
    _write_schema(checkpoint, _struct(user="string"), _struct(first="interval"))
    assert adopt(checkpoint, checkpoint.with_name("ours")).states[0].digest.rows == 9


@pytest.mark.parametrize("wrong", [["a"], {"a": 1}, None, 5])
def test_a_damaged_name_of_the_provider_is_refused(wrong: Any, copy: Callable[[str], Path]) -> None:  # noqa: ANN401
    checkpoint = copy("hdfs")

    def change(entry: Any) -> None:  # noqa: ANN401 - JSON
        entry["conf"]["spark.sql.streaming.stateStore.providerClass"] = wrong

    _change_json(checkpoint / "offsets" / "11", change)
    _refuses(checkpoint, InvalidInputError, "which cannot be read")


def _state(checkpoint: Path, name: str) -> tuple[StateMeta, Form]:
    opened = SparkState(SparkCheckpoint(str(checkpoint), parse({})))
    states = opened.operators[0].metas[0].states
    return next(each for each in states if each.name in (name, "default")), opened.form


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x02\0\0\0\0", b"\x01\0\0\0\0,", b"\x01\0\0\0\0\x01\0", b"\xff" * 9])
def test_damaged_values_of_a_list_are_errors(value: bytes, checkpoints: Path) -> None:
    state, form = _state(checkpoints / "join-4", "left-keyWithTsToValues")
    key = _first_key(checkpoints / "join-4", form)
    for delimiter in (b"", b","):
        converter = RowConverter(state, state.name, Form("rocksdb", delimiter), "the state")
        with pytest.raises(FormatError, match="the state"):
            converter.convert(PackedRows.of([(key, value)]))


def _first_key(checkpoint: Path, form: Form) -> bytes:
    files = StoreFiles(place_at(str(checkpoint / "state" / "0" / "0")), form, Step(3, ""))
    loaded = files.load(checkpoint.parent / "rows")
    try:
        numbers = [number for number, name in loaded.families.items() if name == "left-keyWithTsToValues"]
        rows = [key for portion in read_portions(loaded.database) for key in portion.keys.strings()]
    finally:
        loaded.database.close()
        shutil.rmtree(checkpoint.parent / "rows")
    return next(key[2:] for key in rows if int.from_bytes(key[:2], "little") in numbers)


@pytest.mark.parametrize("key", [b"", b"\1\0\0\0", b"\0" * 20])
def test_damaged_keys_of_session_windows_are_errors(key: bytes, older_checkpoints: Path) -> None:
    state, form = _state(older_checkpoints / "hdfs" / "session windows", "default")
    with pytest.raises(FormatError, match="the state"):
        RowConverter(state, "default", form, "the state").convert(PackedRows.of([(key, bytes(16))]))


def _rewrite_zip(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with zipfile.ZipFile(path) as archive:
        contents = {each.filename: archive.read(each) for each in archive.infolist()}
    version, _, metadata = contents["metadata"].partition(b"\n")
    told = json.loads(metadata)
    change(told)
    contents["metadata"] = version + b"\n" + json.dumps(told).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def test_a_damaged_snapshot_is_named(copy: Callable[[str], Path]) -> None:
    checkpoint = copy("join-4")
    path = checkpoint / "state" / "0" / "1" / "1.zip"
    whole = path.read_bytes()
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda told: told.pop("columnFamilyMapping"),
        lambda told: told.update(columnFamilyMapping={}),
        lambda told: told["sstFiles"][0].update(localFileName="a\0b"),
    ]
    for number, change in enumerate(changes):
        path.write_bytes(whole)
        _rewrite_zip(path, change)
        with pytest.raises(FormatError):
            adopt(checkpoint, checkpoint.with_name(f"never-{number}"))


def test_a_flipped_byte_of_a_snapshot_is_an_error_or_does_no_harm(copy: Callable[[str], Path]) -> None:
    checkpoint, draw = copy("join-4"), random.Random(3)
    path = checkpoint / "state" / "0" / "1" / "1.zip"
    whole, refused = path.read_bytes(), 0
    for number in range(120):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= draw.randrange(1, 256)
        path.write_bytes(damaged)
        files = StoreFiles(place_at(str(path.parent)), Form("rocksdb"), Step(1, ""))
        try:
            files.load(checkpoint.with_name(f"load-{number}")).database.close()
        except CkptError:
            refused += 1
    assert refused > 60
