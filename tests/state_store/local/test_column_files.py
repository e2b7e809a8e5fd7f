"""Column files get beside the table files that batches ask over and over, and go with them; nothing depends on them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.database import Database, Reader, TableFile, write_table_file
from pyspark_ckpt.state_store.database.column_names import MIN_KEYS, column_files_in, columns_folder
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.format.keys import encode_hashed_key
from pyspark_ckpt.state_store.format.meta import EMPTY_META
from pyspark_ckpt.state_store.local.column_files import ColumnFiles, worth_columns
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.sst import column_file
from pyspark_ckpt.state_store.sst.column_file import OpenColumnFiles, write_column_file
from pyspark_ckpt.state_store.sst.lookup import look_up
from tests.labs.lab import TUNING

ROWS, BATCH = 40_000, 3000
PATIENCE_S = 60.0
LOG = StoreLog("test", "0/0/default")


def key_of(number: int) -> bytes:
    return encode_hashed_key(0x4000, number * 2654435761 % (1 << 32), number.to_bytes(8, "big"))


class Live:
    """A live database of one store, and the server's column files."""

    def __init__(self, folder: Path, most_bytes: int = 1 << 30) -> None:
        self.copy = LocalCopy(folder / "stores" / "0-0" / "copy", EMPTY_META)
        self.copy.folder.mkdir(parents=True)
        self.copy.database = self.database = Database(self.copy.db, TUNING)
        self.files = ColumnFiles(folder / "stores", most_bytes)
        self.rows: dict[bytes, bytes] = {}
        self._staged = folder / "x.sst"
        self.on_damage: Callable[[LocalCopy, object], None] = lambda _copy, problem: pytest.fail(str(problem))

    @property
    def columns(self) -> dict[str, Path]:
        return column_files_in(columns_folder(self.copy.db))

    def commit(self, numbers: list[int], value: bytes) -> None:
        some = {key_of(number): value for number in numbers}
        write_table_file(self._staged, sorted(some.items()), TUNING)
        self.database.ingest([self._staged])
        self.rows.update(some)
        self.files.schedule(self.copy, self.database.table_files(), LOG, self.on_damage)

    def close(self) -> None:
        self.files.close()
        self.database.close()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    live = Live(tmp_path)
    yield live
    live.close()


def eventually(look: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < until
        time.sleep(0.05)


def fill(live: Live) -> None:
    live.commit(list(range(ROWS)), b"old")
    live.commit(random.Random(1).sample(range(ROWS), BATCH), b"new")


def test_a_large_table_file_that_small_batches_ask_gets_a_column_file_which_answers(live: Live, tmp_path: Path) -> None:
    fill(live)
    eventually(lambda: len(live.columns) == 1)
    largest = max(live.database.table_files(), key=lambda table: table.rows)
    assert list(live.columns) == [largest.name]

    view = Reader(live.copy.db, TUNING, tmp_path / "view")
    (live.copy.db / largest.name).rename(tmp_path / "away")  # nobody else is asked but for single rows
    keys = sorted(live.rows) + [key_of(ROWS + number) for number in range(9)]
    keys.sort()
    assert look_up(view, Packed.of(keys), OpenColumnFiles(columns_folder(live.copy.db))).strings() == [
        live.rows.get(key) for key in keys
    ]
    view.close()


def test_column_files_go_with_their_table_files(live: Live) -> None:
    fill(live)
    eventually(lambda: len(live.columns) == 1)
    (old,) = live.columns.values()
    live.database.compact()
    live.commit(list(range(BATCH)), b"newer")
    eventually(lambda: len(live.columns) == 1 and old not in live.columns.values())
    live.commit(list(range(ROWS)), b"all")  # such batches ask for all rows of the newest file
    live.database.compact()
    live.commit([1], b"few")
    eventually(lambda: not live.columns)


def test_there_are_none_if_they_would_take_too_much(tmp_path: Path) -> None:
    live = Live(tmp_path, 10_000)
    try:
        fill(live)
        eventually(lambda: bool(live.files._refused))
        live.commit(list(range(BATCH)), b"newer")
        assert list(columns_folder(live.copy.db).iterdir()) == []
    finally:
        live.close()


def test_the_process_that_writes_them_may_die(live: Live) -> None:
    fill(live)
    eventually(lambda: len(live.columns) == 1)
    worker = live.files._worker
    assert worker is not None
    worker.kill()
    live.database.compact()
    live.commit(list(range(BATCH)), b"newer")
    eventually(lambda: bool(live.files._refused))
    assert live.files._worker is None
    live.database.compact()
    live.commit(list(range(BATCH)), b"newest")
    eventually(lambda: len(live.columns) == 1)


def test_one_that_is_damaged_is_removed_and_rocksdb_asked(live: Live, tmp_path: Path) -> None:
    fill(live)
    eventually(lambda: len(live.columns) == 1)
    (path,) = live.columns.values()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    view = Reader(live.copy.db, TUNING, tmp_path / "view")
    keys = sorted(live.rows)
    found = look_up(view, Packed.of(keys), OpenColumnFiles(columns_folder(live.copy.db))).strings()
    assert found == [live.rows[key] for key in keys]
    assert not path.exists()
    view.close()


def test_a_column_file_has_at_most_so_many_bytes(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_file, "PART_BYTES", 1000)
    fill(live)
    table = live.database.table_files()[-1]
    (tmp_path / "columns").mkdir()
    bounds = table.first_key, table.last_key
    with pytest.raises(StorageError, match="more than the 5000 bytes allowed"):
        write_column_file(live.copy.db / table.name, bounds, tmp_path / "columns", 5000)
    assert list((tmp_path / "columns").iterdir()) == []


def test_only_files_that_are_much_larger_than_what_batches_write_are_worth_columns() -> None:
    def table(rows: int) -> TableFile:
        return TableFile(f"{rows}.sst", 1, b"", b"", rows, 6)

    tables = [table(MIN_KEYS), table(2 * MIN_KEYS), table(2 * MIN_KEYS + 1)]
    assert worth_columns(tables, MIN_KEYS) == tables[2:]
    assert worth_columns(tables, MIN_KEYS - 1) == []
    assert worth_columns(tables, MIN_KEYS + 1) == []


def test_one_that_is_damaged_while_it_is_in_use_is_believed_by_no_later_task(live: Live, tmp_path: Path) -> None:
    fill(live)
    eventually(lambda: len(live.columns) == 1)
    (path,) = live.columns.values()
    view, columns = Reader(live.copy.db, TUNING, tmp_path / "view"), OpenColumnFiles(columns_folder(live.copy.db))
    keys = sorted(live.rows)
    assert look_up(view, Packed.of(keys), columns).strings() == [live.rows[key] for key in keys]
    content = bytearray(path.read_bytes())
    values = content.index(live.rows[keys[7]], len(content) // 3)
    for at in range(values, values + 2000, 100):
        content[at] ^= 1
    with path.open("r+b") as file:  # as it is mapped
        file.write(content)
    columns.check_again()
    assert look_up(view, Packed.of(keys), columns).strings() == [live.rows[key] for key in keys]
    assert not path.exists()
    view.close()


def test_a_table_file_that_is_damaged_is_told(live: Live) -> None:
    told: list[object] = []
    live.on_damage = lambda _copy, problem: told.append(problem)
    live.commit(list(range(ROWS)), b"old")
    (path,) = live.copy.db.glob("*.sst")
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 16]))
    live.commit(random.Random(1).sample(range(ROWS), BATCH), b"new")
    eventually(lambda: bool(told))
    assert "is damaged" in str(told[0])
    assert live.columns == {}


def test_there_are_none_where_a_file_is_in_the_place_of_their_folder(tmp_path: Path) -> None:
    (tmp_path / "columns").touch()
    assert not OpenColumnFiles(tmp_path / "columns").have_most_of([])
