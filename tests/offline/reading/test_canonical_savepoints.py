"""Canonical savepoints are read as the checkpoints that they were taken of."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyspark_ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.operators.declarations.states import ListState, ValueState
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import savepoint
from pyspark_ckpt.state_source import StateDataSource
from pyspark_ckpt.state_store.blobs.metered import DOWN, Traffic
from pyspark_ckpt.state_store.redistribution import canonical
from tests.compat.frozen import expected, unpack
from tests.offline.reading.written import UID, Written

KEYED: Any = {
    "n": (ValueState("n", "bigint", ttl=Ttl("1 second", clock="event")), {"value": pa.int64()}),
    "words": (ListState("words", "string"), {"element": pa.string()}),
    "due": (Timers("due", clock="event"), {}),
    "big": (ValueState("big", "binary"), {"value": pa.binary()}),
}
USERS = [f"user {n}" for n in range(300)]
Rows = list[dict[str, Any]]


def work(number: int) -> Callable[[Any], None]:
    def of_key(states: Any) -> None:  # noqa: ANN401
        states.n.update(number)
        states.words.add_all([f"{number}.{n}" for n in range(number % 3)])
        states.due.register(1000 * number, "soon")
        states.big.update(random.Random(number).randbytes(1000))

    return of_key


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """Two partitions; the last batch has no rows, and those of the first have expired by then."""
    made = Written(tmp_path_factory.mktemp("written") / "lab", {"user": pa.string()}, partitions=2)
    made.batch(KEYED, [((user,), work(n)) for n, user in enumerate(USERS[:200])], now_ms=1000)
    made.batch(KEYED, [((user,), work(n)) for n, user in enumerate(USERS) if n >= 200], now_ms=1500)
    made.batch(KEYED, [], now_ms=2200)
    yield made
    made.close()


@pytest.fixture(scope="module")
def taken(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical savepoint of several files, each of several row groups."""
    target = tmp_path_factory.mktemp("taken") / "saved"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "RANGE_BYTES", 50_000)
        patch.setattr(canonical, "GROUP_ROWS", 32)
        savepoint(written.path, str(target), kind="canonical")
    assert len(files_of(target)) > 3
    return target


@pytest.fixture
def saved(taken: Path, tmp_path: Path) -> Path:
    """A copy of it, for one test."""
    return Path(shutil.copytree(taken, tmp_path / "saved"))


def files_of(saved: Path) -> list[Path]:
    return sorted((saved / "rows").rglob("*.parquet"))


def rows_of(path: str | Path, **which: Any) -> Rows:  # noqa: ANN401
    """All rows without the partition, in one order."""
    with open_state(str(path), **which) as state:
        table = state.to_arrow()
        assert table.schema == state.schema
        assert state.count() == len(table)
        return sorted(table.drop_columns(["partition"]).to_pylist(), key=repr)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize("include_expired", [True, False])
def test_a_keyed_state_is_read_as_from_the_checkpoint(
    name: str, written: Written, saved: Path, *, include_expired: bool
) -> None:
    which = {"uid": UID, "state": name, "include_expired": include_expired}
    rows = rows_of(saved, **which)
    assert rows == rows_of(written.path, **which)
    assert len(rows) == (100 if name == "n" and not include_expired else 300)


@pytest.mark.parametrize("name", KEYED)
def test_one_key_is_what_the_program_stored(name: str, written: Written, saved: Path) -> None:
    with open_state(str(saved), state=name) as state, open_state(written.path, state=name) as old:
        for user in ("user 0", "user 4", "user 299", "nobody"):
            assert state.get(user) == old.get(user)
        assert state.get("nobody") in (None, [])


def test_one_key_takes_its_file_alone_and_the_row_groups_that_can_have_it(
    saved: Path, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    groups: Callable[..., Iterator[pa.RecordBatch]] = pq.ParquetFile.iter_batches

    def noted(
        self: pq.ParquetFile, rows: int, numbers: list[int], columns: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        read.extend(numbers if columns is None else [])
        return groups(self, rows, numbers, columns)

    with open_state(str(saved), state="big") as state:
        hashes = {row["key"]["user"]: (row["partition"], row["hash"]) for row in state.to_arrow().to_pylist()}
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
        traffic.take()
        assert state.get("user 7") == random.Random(7).randbytes(1000)
        number, _ = hashes["user 7"]
        assert traffic.take()[DOWN] == files_of(saved)[number].stat().st_size
        assert len(read) == 1 < pq.ParquetFile(files_of(saved)[number]).num_row_groups
        for other in files_of(saved)[:number] + files_of(saved)[number + 1 :]:
            other.unlink()
        assert state.rows_of("user 7")["partition"].to_pylist() == [number]
        assert traffic.take()[DOWN] == 0


@pytest.mark.parametrize("how", ["flipped", "cut", "lost"])
def test_a_damaged_file_is_named(how: str, saved: Path) -> None:
    path = files_of(saved)[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if how == "lost":
        path.unlink()
    else:
        path.write_bytes(content if how == "flipped" else content[:-9])
    with (
        open_state(str(saved), state="big") as state,
        pytest.raises((pyspark_ckpt.FormatError, pyspark_ckpt.NotFoundError), match=f"rows/0/default/{path.name}"),
    ):
        state.to_arrow()


def test_the_reader_of_a_savepoint_names_what_is_there(saved: Path) -> None:
    with open_state(str(saved)) as found:
        assert {state.name: (state.rows, state.kind) for state in found.states} == {
            "big": (300, "ValueState"),
            "due": (300, "Timers"),
            "n": (300, "ValueState"),
            "words": (500, "ListState"),
        }
        assert found.version == 3
    with pytest.raises(pyspark_ckpt.InvalidInputError, match=r"no version 1: it is a savepoint of 3\."):
        open_state(str(saved), version=1)
    with pytest.raises(pyspark_ckpt.InvalidInputError, match="has no state for state 'other'; there are: state 'big'"):
        open_state(str(saved), state="other").to_arrow()
    (saved / "savepoint.json").rename(saved / "savepoint.unfinished")
    with pytest.raises(pyspark_ckpt.InvalidInputError, match="is not a savepoint") as refused:
        open_state(str(saved))
    assert "unfinished" in str(refused.value.hint)


def test_a_frame_has_a_task_for_each_file(written: Written, saved: Path) -> None:
    source = StateDataSource({"path": str(saved), "uid": UID, "state": "n"})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    assert len(parts) == len(files_of(saved))
    tables = [pa.Table.from_batches(batches) for part in parts if (batches := list(reader.read(part)))]
    assert [set(table["partition"].to_pylist()) for table in tables] == [{n} for n in range(len(tables))]
    rows = pa.concat_tables(tables).select(["key", "value"]).to_pylist()
    with open_state(written.path, state="n") as state:
        assert sorted(rows, key=repr) == sorted(state.to_arrow().select(["key", "value"]).to_pylist(), key=repr)


def test_the_command_line_reads_counts_and_gets(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: str, *arguments: str) -> tuple[int, str]:
        return main(["state", command, str(saved), "--state", "words", *arguments]), capsys.readouterr().out

    assert run("count") == (0, "300 elements\n")
    code, text = run("read", "--format", "json")
    assert (code, len(text.splitlines())) == (0, 300)
    code, text = run("get", "--key", '"user 5"', "--format", "json")
    assert (code, [json.loads(line)["value"] for line in text.splitlines()]) == (0, ["5.0", "5.1"])
    assert run("get", "--key", '"nobody"')[0] == 1


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sorted(expected("v1")["queries"]))
def test_all_states_of_sparks_operators_are_read_as_from_the_checkpoint(name: str, tmp_path: Path) -> None:
    checkpoint = unpack("v1", name, tmp_path / name)
    savepoint(str(checkpoint), str(tmp_path / "saved"), kind="canonical")
    with open_state(str(checkpoint)) as old, open_state(str(tmp_path / "saved")) as new:
        states = [state for state in old.states if name != "keyed" or state.uid is not None]
        assert states
        assert [(each.whose, each.rows) for each in new.states] == [(each.whose, each.rows) for each in states]
    for state in states:
        which: Any = {"operator": state.operator.number, "store": state.store, "state": state.stored_name}
        rows = rows_of(tmp_path / "saved", **which)
        assert rows == rows_of(checkpoint, **which), state.whose
        with open_state(str(tmp_path / "saved"), **which) as new, open_state(str(checkpoint), **which) as old:
            for row in [row for row in rows[:3] if row["key"] != {"key": None}]:
                assert new.get(row["key"]) == old.get(row["key"])
