"""Choose the table files of live databases that get a column file, and write these files in the background.

A batch that changes few keys of a large state looks them up in table files that many later batches read, too. After the
commit, a separate process rewrites such files in columns, in which a look-up takes a quarter of the time. Nothing waits
for that and nothing depends on it: without a column file, RocksDB is read.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark_ckpt.state_store.database import BACKGROUND_NICE, TableFile
from pyspark_ckpt.state_store.database.column_names import MIN_KEYS, ROWS_A_KEY, column_files_in, columns_folder
from pyspark_ckpt.state_store.errors import CkptError, FormatError, ProcessError, StorageError
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.local.worker_process import Worker
from pyspark_ckpt.state_store.log import StoreLog

MERGE_S = 0.1
"""After so many seconds, RocksDB has merged the new files of a commit with files of their size."""


@dataclass(frozen=True)
class WriteTask:
    """Writes the column file of a table file, of at most ``most_bytes``, into a folder."""

    table: Path
    bounds: tuple[bytes, bytes]
    folder: Path
    most_bytes: int

    @property
    def key(self) -> str:
        """See Task."""
        return f"columns-{self.table.stem}"

    def __call__(self) -> None:
        """Write the file at the low priority of background work. Raises CkptError."""
        from pyspark_ckpt.state_store.sst.column_file import write_column_file  # noqa: PLC0415 - not for the server

        os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICE)
        try:
            write_column_file(self.table, self.bounds, self.folder, self.most_bytes)
        except OSError as problem:
            raise StorageError(f"Could not write the column file of {self.table}: {problem}") from problem


def count_written_rows(tables: Sequence[TableFile]) -> int:
    """Return how many rows the last batch has written. ``tables`` are newest first."""
    return max((table.rows for table in tables if table.level == tables[0].level), default=0)


def worth_columns(tables: Sequence[TableFile], written: int) -> list[TableFile]:
    """Return the table files that batches of ``written`` rows read again and again."""
    return [table for table in tables if table.rows > ROWS_A_KEY * written] if written >= MIN_KEYS else []


OnDamage = Callable[[LocalCopy, object], None]
"""A callback that gets a copy with a damaged table file, and the error."""


def _leave(_copy: LocalCopy, _problem: object) -> None:
    """Ignore the damage: a reader of the file will find it."""


class ColumnFiles:
    """The column files of all stores below a folder, at most ``most_bytes`` in total."""

    def __init__(self, stores: Path, most_bytes: int) -> None:
        self._stores, self._most_bytes = stores, most_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="columns")
        self._worker: Worker | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._refused: set[Path] = set()

    def schedule(
        self, copy: LocalCopy, tables: Sequence[TableFile], log: StoreLog, on_damage: OnDamage = _leave
    ) -> None:
        """Schedule column files after a commit to the live database, which now has these ``tables``."""
        written = count_written_rows(tables)
        if self._most_bytes and (worth_columns(tables, written) or columns_folder(copy.db).exists()):
            with suppress(RuntimeError):  # the process is ending
                self._thread.submit(self._write_due, copy, written, time.monotonic() + MERGE_S, log, on_damage)

    def close(self) -> None:
        """Stop writing."""
        with self._lock:
            self._closed = True
            if self._worker is not None:
                self._worker.kill()
        self._thread.shutdown(cancel_futures=True)
        if self._worker is not None:
            self._worker.close()

    def _write_due(self, copy: LocalCopy, written: int, when: float, log: StoreLog, on_damage: OnDamage) -> None:
        time.sleep(max(0, when - time.monotonic()))
        database, folder = copy.database, columns_folder(copy.db)
        if database is None or self._closed:
            return
        try:
            tables = database.table_files()
            live = {table.name for table in tables}
            there = column_files_in(folder)
            for name in there.keys() - live:
                there[name].unlink(missing_ok=True)
            self._refused = {path for path in self._refused if path.parent != copy.db or path.name in live}
            for table in reversed(worth_columns(tables, written)):  # oldest first: the others need it
                if table.name not in there and copy.db / table.name not in self._refused:
                    self._write(copy.db / table.name, table, folder, log)
        except FormatError as problem:
            on_damage(copy, problem)
        except (CkptError, OSError) as problem:
            if copy.database is not None:  # otherwise it was closed in the meantime
                log.warning("no column files are written for %s after this commit: %s", copy.db, problem)
        finally:
            if not copy.db.exists():
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, path: Path, table: TableFile, folder: Path, log: StoreLog) -> None:
        left = self._most_bytes - sum(each.stat().st_size for each in self._stores.glob("*/*/columns/*.arrow"))
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._run(WriteTask(path, (table.first_key, table.last_key), folder, left))
        except (CkptError, OSError) as problem:
            if path.exists() and not self._closed:
                self._refused.add(path)
                log.warning("%s has no column file, so looking up its rows takes longer: %s", path, problem)
                if isinstance(problem, FormatError):
                    raise

    def _run(self, task: WriteTask) -> None:
        with self._lock:
            if self._closed:
                return
            if self._worker is None:
                self._worker = Worker()
            worker = self._worker
        try:
            worker.run(task)
        except ProcessError:
            with self._lock:
                self._worker = None
            worker.close()
            raise
