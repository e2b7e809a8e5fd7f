"""``crash``: a query on real local Spark, killed again and again, must have the same result as without faults."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike, utime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_ckpt.operators.frames import resolve_columns
from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError
from pyspark_ckpt.testing.comparison import count_rows, describe_differences, last_by_key
from pyspark_ckpt.testing.crashes.faults import EXECUTOR, KINDS, Faults
from pyspark_ckpt.testing.crashes.job import Job
from pyspark_ckpt.testing.crashes.lives import Query
from pyspark_ckpt.testing.crashes.states import read_states
from pyspark_ckpt.testing.given_rows import RowsLike, read_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

EXECUTOR_MEMORY_MB = 1024
FIRST_FILE_S = 1_700_000_000
"""The time of the first file, in s since 1970: Spark reads files in the order of their times."""
_CONF = {
    "spark.master": "local[2,8]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True)
class Batches:
    """An input of a query that ``crash`` runs: columns, as a StructType or Spark DDL, and the rows of each batch."""

    columns: StructType | str
    batches: Sequence[RowsLike]

    def write(self, folder: Path) -> StructType:
        """Write a file for each batch, in the order in which Spark reads them; return the columns.

        Raises InvalidInputError.
        """
        schema = resolve_columns(self.columns, "The columns")
        arrow = make_handed_schema(schema)
        folder.mkdir(parents=True)
        for number, rows in enumerate(self.batches):
            batch = read_columns(rows, arrow, f"Batch {number}")
            path = folder / f"{number:06d}.parquet"
            pq.write_table(pa.Table.from_batches([batch]), path)
            utime(path, (FIRST_FILE_S + number,) * 2)
        return schema


@dataclass(frozen=True)
class Survived:
    """The result of a query.

    ``faults``: those that happened to it. ``rows``: all rows of its output, batch by batch. ``checkpoint``: its last
    one, which is gone unless ``folder`` was given.
    """

    faults: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    checkpoint: str


def crash(
    build: Callable[..., DataFrame],
    *,
    seed: int = 0,
    faults: int = 4,
    mode: str = "append",
    key: str | Sequence[str] = (),
    parallelism: int = 3,
    executors: int = 0,
    compare_states: bool = True,
    conf: Mapping[str, str] | None = None,
    timeout_s: float = 600,
    folder: str | PathLike[str] | None = None,
    **inputs: Batches,
) -> Survived:
    """Run a query on local Spark twice, once with ``faults`` that ``seed`` chooses; both must have the same output.

    ``build`` makes the query: it gets a streaming frame for each of the ``inputs``, by its name, and returns a frame. A
    batch of the query has the rows of one batch of each input. The query runs in separate processes, so ``build`` must
    be importable there, or a function that cloudpickle can copy.

    The faults: the driver, a state server, a Python worker or an executor is killed; the driver or a state server
    pauses for some seconds; the driver and all of its processes stop, another driver takes their place, and then they
    wake up; the state server fails, dies or waits at a step of a commit; a request to the place of the state fails,
    before it is sent or after a write was carried out, or takes long, or the state server dies there. A query that has
    ended is started again, until it has read all of its input. After the death of a driver it may be rescaled, to up to
    ``parallelism`` partitions. ``executors``: how many there are, each a process of its own with one core; with 0, all
    tasks run in the driver.

    In append mode, each row must be output equally often; in update mode, the last row of each ``key``, given as names
    of output columns, must be equal. The contents of the states must be equal, too, unless ``compare_states`` is False;
    states that expire by processing time are not compared. ``conf``: confs of the session. ``timeout_s``: for each life
    of the query. ``folder``: keeps inputs, checkpoints, output and logs; by default they are temporary.

    Raises AssertionError that names the differences and the seed, ProcessError if the query fails without a fault, or
    does not end, and InvalidInputError.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    if not inputs:
        hint = "Give each a name: visits=ckpt.testing.Batches('user string', [...])."
        raise InvalidInputError("crash: there are no inputs.", hint=hint)
    if mode.lower() == "update" and not names:
        raise InvalidInputError("crash: in update mode, `key` must name the columns by which rows replace others.")
    with tempfile.TemporaryDirectory(prefix="pyspark-ckpt-crash-") as temporary:
        home = Path(temporary if folder is None else folder)
        folders = {name: home / "inputs" / name for name in inputs}
        frames = {name: (each.write(folders[name]), str(folders[name])) for name, each in inputs.items()}
        base = {**_CONF, **_make_master(executors), PARTITIONS_CONF: str(parallelism)}
        job = Job(build, frames, mode, {**base, **(conf or {})}, "", "")
        calm, shaken = Query(job, home / "calm", timeout_s), Query(job, home / "shaken", timeout_s)
        calm.live(Faults(seed, (), 0, 0.0))
        happened = Faults(seed, (*KINDS, EXECUTOR) if executors else KINDS, faults, calm.seconds)
        with closing(shaken):
            while not shaken.live(happened):
                partitions = happened.draw_partitions(parallelism)
                if partitions and shaken.rescale(partitions):
                    happened.done.append(f"rescale to {partitions}")
        if faults and not happened.done:
            raise ProcessError(
                f"crash: no fault has happened before the query ended (seed={seed}).",
                hint="Give it more batches, or more faults.",
            )
        found = shaken.read()
        lines = _compare(calm.read(), found, mode.lower(), names)
        if compare_states:
            lines += _compare_states(calm.checkpoint, shaken.checkpoint)
        if lines:
            how = f"seed={seed}, after {', '.join(happened.done)}"
            raise AssertionError("\n".join([f"The result differs ({how}):", *lines]))
        return Survived(tuple(happened.done), tuple(tuple(row.values()) for row in found), shaken.checkpoint)


_WHERE = ("without faults", "with faults")


def _make_master(executors: int) -> dict[str, str]:
    """Return the confs of a session with so many executors. Raises InvalidInputError."""
    given: object = executors
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise InvalidInputError(f"crash: executors must be an integer from 0 on, got {executors!r}.")
    if not executors:
        return {}
    return {
        "spark.master": f"local-cluster[{executors},1,{EXECUTOR_MEMORY_MB}]",
        "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
        "spark.task.maxFailures": "8",
        "spark.deploy.maxExecutorRetries": "-1",
    }


def _compare(
    expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], mode: str, key: Sequence[str]
) -> list[str]:
    """Return lines that say how two outputs differ."""

    def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
        if mode == "append":
            return count_rows([tuple(row.values()) for row in rows])
        return last_by_key([tuple(row.values()) for row in rows], list(rows[0]) if rows else list(key), key)

    first, second = summarise(expected), summarise(found)
    return [] if first == second else describe_differences("output", first, second, _WHERE)


def _compare_states(expected: str, found: str) -> list[str]:
    """Return lines that say how the states of two checkpoints differ."""
    first, second = read_states(expected), read_states(found)
    differing = [name for name in {**first, **second} if first.get(name, {}) != second.get(name, {})]
    return [
        line
        for name in differing
        for line in describe_differences(name, first.get(name, {}), second.get(name, {}), _WHERE)
    ]
