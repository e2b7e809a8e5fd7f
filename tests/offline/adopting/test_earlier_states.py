"""A program of ``transformWithState`` that no longer declares a variable: its rows move, or are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.offline.reading import open_state
from pyspark_ckpt.state_store.checkpoints.query.spark_files import (
    _SCHEMA_ID_BYTES,
    _read_chunks,
    _read_text,
    read_schemas,
)
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.saved_query import files
from tests.offline.adopting.written import unpack_all

WORDS, IDS = ("words", "$ttl_words"), ("ids", "$ttl_ids", "$min_ids", "$count_ids", "$rowCounter_ids")
LATER = "1_00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints of processors with changelogs and checksums, and with Avro."""
    return unpack_all("4.3-forms", tmp_path_factory.mktemp("forms"))


@pytest.fixture(scope="module")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a program that has dropped variables, as Spark has left it."""
    return unpack_all("4.3-evolved", tmp_path_factory.mktemp("evolved")) / "evolved"


def entries(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The states of a schema file of version 3: their names, and all that it has of them."""
    _, rest = _read_text(content, "")
    rest = rest[4:]
    while rest:
        name, left = _read_text(rest, "")
        _, left = _read_chunks(left[_SCHEMA_ID_BYTES:], "")
        _, left = _read_chunks(left[_SCHEMA_ID_BYTES:], "")
        for _ in range(2):
            _, left = _read_chunks(left, "")
        yield name.decode(), rest[: len(rest) - len(left)]
        rest = left


def leave_out(checkpoint: Path, *names: str) -> Path:
    """Have Spark's newest files of a checkpoint describe a program without some variables. The old schema file."""
    schemas = checkpoint / "state/0/_stateSchema/default"
    (old,) = (path for path in schemas.iterdir() if path.name.startswith("0_"))
    content = old.read_bytes()
    left = [entry for name, entry in entries(content) if name not in names]
    assert len(left) < len(list(entries(content)))
    (schemas / LATER).write_bytes(content[:4] + len(left).to_bytes(4, "big") + b"".join(left))
    assert len(read_schemas((schemas / LATER).read_bytes(), "")) == len(left)
    logged = checkpoint / "state/0/_metadata/v2"
    newest = max(int(path.name) for path in logged.iterdir() if path.name.isdecimal())
    head, entry = (logged / str(newest)).read_text().split("\n")
    told = json.loads(entry)
    paths = told["stateStoreInfo"][0]["stateSchemaFilePaths"]
    told["stateStoreInfo"][0]["stateSchemaFilePaths"] = [paths[0].replace(old.name, LATER)]
    properties = json.loads(told["operatorPropertiesJson"])
    properties["stateVariables"] = [each for each in properties["stateVariables"] if each["stateName"] not in names]
    told["operatorPropertiesJson"] = json.dumps(properties)
    (logged / str(newest + 1)).write_text(f"{head}\n{json.dumps(told)}")
    return old


def rows_of(checkpoint: Path, state: str) -> list[dict[str, Any]]:
    with open_state(checkpoint, operator=0, state=state, include_expired=True) as reader:
        return sorted(reader.to_arrow().to_pylist(), key=repr)


@pytest.mark.parametrize(
    "left_out", [WORDS, IDS, (*WORDS, *IDS), IDS[:-1]], ids=["map", "list", "both", "all but counts"]
)
@pytest.mark.parametrize("form", ["processor", "sums"])
def test_states_that_a_program_left_out_move_with_their_rows(
    left_out: tuple[str, ...], form: str, checkpoints: Path, forms: Path, tmp_path: Path
) -> None:
    source = (checkpoints if form == "processor" else forms) / form
    shutil.copytree(source, tmp_path / "old")
    whole = ckpt.moving.adopt(source, tmp_path / "expected", 2)
    leave_out(tmp_path / "old", *left_out)
    before = files(tmp_path / "old")
    done = ckpt.moving.adopt(tmp_path / "old", tmp_path / "new", 2)
    assert files(tmp_path / "old") == before
    assert {each.name: each.digest for each in done.states if each.digest.rows} == {
        each.name: each.digest for each in whole.states if each.digest.rows
    }
    for state in ("total", "words", "ids"):
        assert rows_of(tmp_path / "new", state) == rows_of(tmp_path / "expected", state)
        assert rows_of(tmp_path / "new", state)
    assert main(["checkpoint", "verify", str(tmp_path / "new")]) == 0
    ckpt.moving.hand_back(tmp_path / "new", tmp_path / "back")
    again = ckpt.moving.adopt(tmp_path / "back", tmp_path / "again", 2)
    assert {each.name: each.digest.rows for each in again.states} == {
        each.name: each.digest.rows for each in done.states
    }


@pytest.mark.parametrize("left_out", [WORDS, IDS], ids=["map", "list"])
def test_rows_of_which_spark_has_deleted_the_schema_are_refused_before_anything_is_written_or_left_behind(
    left_out: tuple[str, ...], checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(checkpoints / "processor", tmp_path / "old")
    leave_out(tmp_path / "old", *left_out).unlink()
    with pytest.raises(InvalidInputError, match=r"has rows of the states .*Nothing was written") as caught:
        ckpt.moving.adopt(tmp_path / "old", tmp_path / "new")
    assert left_out[0] in caught.value.message
    assert "drop_unknown_states=True" in caught.value.hint
    for more in ((), ("--dry-run",)):
        assert main(["checkpoint", "adopt", str(tmp_path / "old"), str(tmp_path / "new"), *more]) == 2
        assert "--drop-unknown-states" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    done = ckpt.moving.adopt(tmp_path / "old", tmp_path / "new", drop_unknown_states=True)
    assert not {each.name for each in done.states} & set(left_out)
    assert rows_of(tmp_path / "new", "total")
    ckpt.moving.hand_back(tmp_path / "new", tmp_path / "back")


def test_a_state_whose_kind_is_not_known_any_more_is_refused(checkpoints: Path, tmp_path: Path) -> None:
    """The values of a list are stored in another way, and its schema does not say that it is one."""
    shutil.copytree(checkpoints / "processor", tmp_path / "old")
    leave_out(tmp_path / "old", "ids")
    (tmp_path / "old/state/0/_metadata/v2/0").unlink()
    with pytest.raises(InvalidInputError, match=r"has rows of the states \['ids'\]"):
        ckpt.moving.adopt(tmp_path / "old", tmp_path / "new")


def test_a_left_out_state_of_avro_moves_with_all_its_schemas(forms: Path, tmp_path: Path) -> None:
    shutil.copytree(forms / "avro", tmp_path / "old")
    ckpt.moving.adopt(forms / "avro", tmp_path / "expected")
    leave_out(tmp_path / "old", *WORDS)
    ckpt.moving.adopt(tmp_path / "old", tmp_path / "new")
    assert rows_of(tmp_path / "new", "words") == rows_of(tmp_path / "expected", "words") != []


def test_what_a_program_on_spark_has_dropped_moves_there_and_back(evolved: Path, tmp_path: Path) -> None:
    done = ckpt.moving.adopt(evolved, tmp_path / "new", 3)
    assert {each.name: each.digest.rows for each in done.states} == {"a": 5, "b": 5, "m": 5, "$rowCounter_l": 5}
    assert [row["value"]["n"] for row in rows_of(tmp_path / "new", "a")] == [5] * 5
    assert [row["value"]["n"] for row in rows_of(tmp_path / "new", "b")] == [3] * 5
    ckpt.moving.hand_back(tmp_path / "new", tmp_path / "back")
    again = ckpt.moving.adopt(tmp_path / "back", tmp_path / "again", 3)
    assert {each.name: each.digest.rows for each in again.states} == {
        each.name: each.digest.rows for each in done.states
    }


def test_counts_that_a_deleted_list_has_left_are_refused_or_left_behind_when_their_schema_is_gone(
    evolved: Path, tmp_path: Path
) -> None:
    shutil.copytree(evolved, tmp_path / "old")
    for file in (tmp_path / "old/state/0/_stateSchema/default").iterdir():
        if not file.name.startswith("3_"):
            file.unlink()
    with pytest.raises(InvalidInputError, match=r"the states \['\$rowCounter_l', 'b', 'm'\]"):
        ckpt.moving.adopt(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    done = ckpt.moving.adopt(tmp_path / "old", tmp_path / "new", drop_unknown_states=True)
    assert {each.name: each.digest.rows for each in done.states} == {"a": 5}
