"""Stores that Spark 4.3.0 has written: the same rows in all forms, and errors that name a missing or damaged file."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from pyspark_ckpt.offline.adopting.stored_rows import read_portions
from pyspark_ckpt.offline.adopting.stores import Form, LoadedStore, Step, StoreFiles
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.checkpoints.query.spark_files import read_schemas
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from tests.offline.adopting.written import FORMS, VERSIONS

ROWS = [1, 1, 4, 4, 10, 9, 13, 10, 13, 7, 11, 7]
"""How many rows partition 0 has in each version."""

Rows = list[tuple[bytes, bytes]]


def _files(checkpoint: Path, form: str, version: int) -> StoreFiles:
    commit = ""
    if form == "format-2":
        entry = json.loads((checkpoint / "commits" / str(version - 1)).read_text().splitlines()[1])
        commit = entry["stateUniqueIds"]["0"][0][0]
    place = place_at(str(checkpoint / "state" / "0" / "0"))
    return StoreFiles(place, Form(FORMS.get(form, "rocksdb")), Step(version, commit))


def _rows(loaded: LoadedStore) -> Rows:
    with closing(loaded.database) as database:
        return [row for portion in read_portions(database) for row in portion.rows()]


def test_all_forms_have_the_same_rows_in_every_version(checkpoints: Path, tmp_path: Path) -> None:
    for version, expected in enumerate(ROWS, 1):
        found = {}
        for form in FORMS:
            if version <= VERSIONS.get(form, len(ROWS)):
                rows = _rows(_files(checkpoints / form, form, version).load(tmp_path / f"{form}-{version}"))
                is_bare = form == "hdfs"  # others have a version, a zero byte, before keys and values
                found[form] = rows if is_bare else sorted((key[1:], value[1:]) for key, value in rows)
        assert len(found["hdfs"]) == expected
        assert all(rows == sorted(found["hdfs"]) for rows in found.values())


def test_states_of_one_store_have_numbers_and_values_that_were_added(checkpoints: Path, tmp_path: Path) -> None:
    loaded = _files(checkpoints / "join-4", "join-4", 3).load(tmp_path / "join")
    states = Counter(loaded.families[int.from_bytes(key[:2], "little")] for key, _ in _rows(loaded))
    assert states == {
        "left-keyWithTsToValues": 8,
        "left-tsWithKey": 8,
        "right-keyWithTsToValues": 5,
        "right-tsWithKey": 5,
    }
    (file,) = (checkpoints / "join-4" / "state" / "0" / "_stateSchema" / "default").iterdir()
    schemas = read_schemas(file.read_bytes(), str(file))
    assert sorted(each.name for each in schemas) == sorted(states)
    assert {each.encoder["keyStateEncoderType"] for each in schemas} == {
        "TimestampAsPrefixKeyStateEncoderSpec",
        "TimestampAsPostfixKeyStateEncoderSpec",
    }
    with pytest.raises(FormatError, match="is damaged"):
        read_schemas(file.read_bytes()[:-5], str(file))


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_missing_or_damaged_is_named(form: str, checkpoints: Path, tmp_path: Path) -> None:
    version, state = VERSIONS.get(form, len(ROWS)), checkpoints / form / "state" / "0" / "0"
    expected = _rows(_files(checkpoints / form, form, version).load(tmp_path / "whole"))
    refused, numbers = [], count()
    for path in sorted(each for each in state.rglob("*") if each.is_file() and each.name != "schema"):
        content = path.read_bytes()
        for harmed in (None, content[: len(content) // 2], bytes(len(content))):
            path.unlink()
            if harmed is not None:
                path.write_bytes(harmed)
            try:
                loaded = _files(checkpoints / form, form, version).load(tmp_path / str(next(numbers)))
                assert _rows(loaded) == expected  # the file is not needed
            except (FormatError, NotFoundError) as problem:
                refused.append((path.name, harmed is None, problem))
            path.write_bytes(content)
    assert len(refused) >= 3
    for name, is_gone, refusal in refused:
        assert name in str(refusal) or name.partition("-")[0] in str(refusal)  # a table file has another name here
        assert isinstance(refusal, NotFoundError if is_gone else FormatError)
