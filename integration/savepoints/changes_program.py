"""A program that changes state in the tasks of a Spark job, some of which are killed.

Arguments: the master, whether workers die, and a folder, which has a savepoint ``saved``. It prints JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt import writing
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark_ckpt.state_store.savepoints.savepoint import SavepointInfo

UID, KEY = "u", "user string"
N, ITEMS = ckpt.ValueState("n", "long"), ckpt.ListState("items", "string")


class BadRowError(Exception):
    """An error of a user."""


def list_changes(folder: Path, *, dies: bool) -> list[writing.Change]:
    """What is changed. Where a task runs, the first call of a function may kill its process."""

    def perhaps_die(name: str) -> None:
        try:
            (folder / name).touch(exist_ok=False)
        except FileExistsError:
            return
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    def double(rows: pa.Table) -> pa.Table:
        perhaps_die("transform")
        even = rows.filter(pc.equal(pc.bit_wise_and(rows["value"], 1), 0))
        return even.set_column(even.column_names.index("value"), "value", pc.multiply(even["value"], 2))

    def upper(rows: pa.Table) -> pa.Table:
        perhaps_die("rekey")
        users = pc.utf8_upper(pc.struct_field(rows["key"], "user"))
        return rows.drop_columns(["key"]).append_column("user", users)

    return [writing.Transform(UID, "n", double), writing.ReKey(UID, KEY, upper)]


def describe(info: SavepointInfo) -> object:
    """What a savepoint has."""
    return [
        [
            each.name,
            {name: [digest.rows, digest.sum] for name, digest in each.digests.items()},
            [f.xxh3 for f in each.files],
        ]
        for each in info.rows
    ]


def fail(rows: pa.Table) -> pa.Table:
    """Fail."""
    raise BadRowError(f"{len(rows)} bad rows")


def main(master: str, dies: str, folder: Path) -> None:
    """Run it."""
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF")
    spark = builder.getOrCreate()
    shown: dict[str, object] = {}
    given = list_changes(folder, dies=dies == "dies")
    try:
        shown["written"] = describe(ckpt.writing.write_state(folder / "saved", folder / "written", given))
    except Py4JJavaError as problem:
        shown["problem"] = f"{problem}"[:20_000]
    try:
        ckpt.writing.write_state(folder / "saved", folder / "failed", [writing.Transform(UID, "n", fail)])
    except BadRowError:
        shown["raised"] = traceback.format_exc()
    frame = spark.range(0, 3000, 1, 5).selectExpr("concat('u', id) AS user", "id AS value")
    put = writing.Put(UID, N, frame, KEY)
    changed: list[writing.Change] = [put, *list_changes(folder, dies=False)]
    shown["changed"] = describe(ckpt.writing.write_state(None, folder / "changed", changed, parallelism=3))
    (told,) = ckpt.writing.dry_run(None, changed, samples=2, parallelism=3).states
    shown["told"] = [told.rows_after, told.sample and told.sample.column_names, told.sample and len(told.sample)]
    failing: list[writing.Change] = [put, writing.Transform(UID, "n", fail)]
    try:
        ckpt.writing.write_state(None, folder / "failed frame", failing, parallelism=3)
    except BadRowError as problem:
        shown["raised by write_state"] = f"{problem} {problem.__cause__}"
    try:
        ckpt.writing.dry_run(None, failing, parallelism=3)
    except BadRowError as problem:
        shown["raised by dry_run"] = f"{problem} {problem.__cause__}"
    twice = frame.union(frame.limit(1))
    shown["put"] = describe(
        ckpt.writing.write_state(None, folder / "put", [writing.Put(UID, N, frame, KEY)], parallelism=3)
    )
    try:
        ckpt.writing.write_state(None, folder / "twice", [writing.Put(UID, N, twice, KEY)], parallelism=3)
    except InvalidInputError as problem:
        shown["twice"] = f"{type(problem).__name__}: {problem}"[:2000]
    bad = frame.selectExpr("user", "CAST(value AS string) || 'x' AS value")
    try:
        ckpt.writing.write_state(None, folder / "bad", [writing.Put(UID, N, bad, KEY)], parallelism=3)
    except InvalidInputError as problem:
        shown["bad"] = f"{type(problem).__name__}: {problem}"[:2000]
    print("RESULT", json.dumps(shown), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
