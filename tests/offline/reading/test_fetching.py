"""What is fetched to read a part of a state, and what becomes of it."""

from __future__ import annotations

import logging
import random
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyspark_ckpt
from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.blobs.metered import DOWN, LISTS, READS, Traffic
from pyspark_ckpt.state_store.format.manifest import decode
from tests.labs.lab import damage
from tests.offline.reading.conftest import MakeWritten
from tests.offline.reading.written import UID, Written
from tests.services.s3_server import S3Service

BYTES = 50_000
STATES: Any = {
    "big": (ValueState("big", "binary"), {"value": pa.binary()}),
    "small": (ValueState("small", "bigint"), {"value": pa.int64()}),
}
KEYS = [(n,) for n in range(16)]
CHANGED, CLEARED, RECENT, ADDED = 3, 5, 9, 16


def value(key: int, version: int) -> bytes:
    return random.Random(key * 100 + version).randbytes(BYTES)


def put(key: int, version: int) -> Any:  # noqa: ANN401
    return lambda states: states.big.update(value(key, version))


def put_small(key: int) -> Any:  # noqa: ANN401
    return lambda states: states.small.update(key)


def write(make_written: MakeWritten, **options: str) -> Written:
    """Three versions, a snapshot of them with a table file for each key of the large state, and a fourth version."""
    made = make_written({"n": pa.int64()}, **options)
    made.batch(STATES, [((n,), put(n, 1)) for (n,) in KEYS], file_each=True)
    made.batch(STATES, [((n,), put_small(n)) for (n,) in KEYS])
    made.batch(STATES, [((RECENT,), put(RECENT, 2))])
    made.snapshot()
    last = [((CHANGED,), put(CHANGED, 3)), ((CLEARED,), lambda states: states.big.clear()), ((ADDED,), put(ADDED, 3))]
    made.batch(STATES, last)
    return made


@pytest.fixture
def written(make_written: MakeWritten) -> Written:
    return write(make_written)


def expected() -> dict[int, bytes | None]:
    versions = {CHANGED: 3, RECENT: 2, ADDED: 3}
    return {n: None if n == CLEARED else value(n, versions.get(n, 1)) for n in range(17)}


def tables_of(written: Written, key: int) -> set[str]:
    """Objects of the snapshot that can have a key of the large state, and those that are smaller than a row of it."""
    (path,) = written.lab.checkpoint.rglob("*.snapshot")
    wanted = (0x4000).to_bytes(2, "big") + written.suffix((key,))
    return {
        name
        for name, file in decode(path.read_bytes(), str(path)).objects().items()
        if (file.first_key or b"") <= wanted <= (file.last_key or b"") or file.size_bytes < BYTES
    }


def keep_only(written: Written, tables: set[str]) -> int:
    """Delete all other table files, and the deltas that could take their place; returns how many files."""
    store = written.lab.checkpoint / "state" / "0" / "0"
    for delta in store.glob("*.delta"):
        if delta.name < f"{4:020d}":
            delta.unlink()
    gone = [path for path in (store / "sst").iterdir() if f"sst/{path.name}" not in tables]
    for path in gone:
        path.unlink()
    return len(gone)


def test_one_key_takes_the_files_that_can_have_it_and_the_deltas(written: Written, traffic: Traffic) -> None:
    stored_bytes = sum(path.stat().st_size for path in written.lab.checkpoint.rglob("*.sst"))
    newest_delta = max(written.lab.checkpoint.rglob("*.delta")).stat().st_size
    for key, stored in expected().items():
        with open_state(written.path, uid=UID, state="big") as state:
            assert state.get(key) == stored
        used = traffic.take()
        # Beside the delta: the file of the key or the next one, that of level 0, which has no order, and small ones.
        assert used[DOWN] < newest_delta + 3 * BYTES < stored_bytes / 3
        assert used[READS] < 30


def test_what_one_key_has_fetched_is_not_fetched_again_for_others(written: Written, traffic: Traffic) -> None:
    with (
        open_state(written.path, uid=UID, state="big") as big,
        open_state(written.path, uid=UID, state="small") as small,
    ):
        assert (big.get(0), small.get(0)) == (value(0, 1), 0)
        traffic.take()
        assert big.get(0) == value(0, 1)
        assert [small.get(n) for (n,) in KEYS] == [n for (n,) in KEYS]
        assert small.get(ADDED) is None
        assert set(traffic.take().values()) == {0}
        used = []
        for key, stored in expected().items():
            assert big.get(key) == stored
            used.append(traffic.take())
        assert {each[LISTS] for each in used} == {0}
        # The table file of a key and perhaps the next one, until half of all files are here. Then the rest follows.
        few, rest = [each for each in used if each[READS] <= 2], [each for each in used if each[READS] > 2]
        assert max(each[DOWN] for each in few) < 2 * BYTES + 10_000
        assert len(rest) == 1
        assert rest[0][DOWN] <= BYTES * (len(KEYS) / 2 + 2)
        assert used[-1][READS] == 0


def test_a_version_that_retention_has_deleted_is_read_from_what_was_fetched(written: Written) -> None:
    with open_state(written.path, uid=UID, state="small") as state:
        assert state.get(0) == 0
        for path in (*written.lab.checkpoint.rglob("*.delta"), *written.lab.checkpoint.rglob("*.snapshot")):
            path.unlink()
        assert [state.get(n) for (n,) in KEYS] == [n for (n,) in KEYS]


def test_a_base_that_retention_has_deleted_is_missed_once(
    make_written: MakeWritten, traffic: Traffic, caplog: pytest.LogCaptureFixture
) -> None:
    made = write(make_written, snapshotMode="full", retentionGracePeriod="0")
    with caplog.at_level(logging.INFO), open_state(made.path, uid=UID, state="big") as state:
        assert state.get(0) == value(0, 1)
        made.snapshot()
        made.clean_up()
        traffic.take()
        assert state.get(15) == value(15, 1)
        assert traffic.take()[LISTS] > 0
        assert caplog.text.count("retention has run meanwhile") == 1
        assert state.get(11) == value(11, 1)
        used = traffic.take()
    assert used[LISTS] == 0
    assert used[READS] <= 2, "the table file of the key, and perhaps the next one"
    assert caplog.text.count("retention has run meanwhile") == 1


def test_one_key_is_read_when_the_files_of_all_others_are_gone(written: Written) -> None:
    assert keep_only(written, tables_of(written, 0) | tables_of(written, RECENT)) == len(KEYS) - 2
    with open_state(written.path, uid=UID, state="big") as state:
        assert [state.get(key) for key in (0, RECENT)] == [value(0, 1), value(RECENT, 2)]
        for read in (state.to_arrow, lambda: state.get(1)):
            with pytest.raises(pyspark_ckpt.CkptError, match="sst"):
                read()


def test_all_rows_are_those_of_the_version(written: Written) -> None:
    with open_state(written.path, uid=UID, state="big") as state:
        rows = state.to_arrow().to_pylist()
    assert {row["key"]["n"]: row["value"] for row in rows} == {
        key: stored for key, stored in expected().items() if stored is not None
    }


def test_a_small_state_beside_a_large_one_takes_little(written: Written, traffic: Traffic) -> None:
    with open_state(written.path, uid=UID, state="small") as state:
        assert sorted(state.to_arrow()["value"].to_pylist()) == list(range(len(KEYS)))
        assert state.count() == len(KEYS)
    newest_delta = max(written.lab.checkpoint.rglob("*.delta")).stat().st_size
    assert traffic.take()[DOWN] < newest_delta + 2.5 * BYTES


def test_a_damaged_file_is_named_and_deltas_take_the_place_of_its_snapshot(
    written: Written, traffic: Traffic, caplog: pytest.LogCaptureFixture
) -> None:
    store = written.lab.checkpoint / "state" / "0" / "0"
    (path,) = (store / name for name in tables_of(written, 0) if (store / name).stat().st_size > BYTES)
    damage(path)
    with caplog.at_level(logging.WARNING), open_state(written.path, uid=UID, state="big") as state:
        assert state.get(0) == value(0, 1)
        traffic.take()
        assert state.get(1) == value(1, 1), "the deltas have all rows"
        assert set(traffic.take().values()) == {0}
    assert path.name in caplog.text
    for delta in store.glob(f"{1:020d}*.delta"):
        delta.unlink()
    with (
        open_state(written.path, uid=UID, state="big") as state,
        pytest.raises(pyspark_ckpt.FormatError, match=path.name),
    ):
        state.get(0)


def test_state_in_s3_is_read_by_what_its_checkpoint_says(make_written: MakeWritten, s3: S3Service) -> None:
    made = make_written({"n": pa.int64()}, remote=s3.new_folder(), **s3.options)
    made.batch(STATES, [((n,), put(n, 1)) for n in range(3)], file_each=True)
    made.snapshot()
    made.batch(STATES, [((1,), put(1, 2))])
    with open_state(made.path, uid=UID, state="big", options=s3.options) as state:
        assert [state.get(n) for n in range(4)] == [value(0, 1), value(1, 2), value(2, 1), None]
        assert len(state.to_arrow()) == 3


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


def test_temporary_folders_are_private_and_go_when_rows_are_not_read_to_the_end(
    written: Written, temporary: Path
) -> None:
    with open_state(written.path, uid=UID, state="big") as state:
        batches = state.batches()
        next(batches)
        (folder,) = temporary.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        batches.close()
        assert not list(temporary.iterdir())
        state.get(0)


def test_a_closed_reader_is_refused(written: Written) -> None:
    with open_state(written.path, uid=UID, state="big") as state:
        pass
    for read in (state.to_arrow, lambda: state.get(1), lambda: state.states):
        with pytest.raises(pyspark_ckpt.LifecycleError, match="closed"):
            read()
