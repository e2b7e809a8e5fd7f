"""``python -m integration.sizing``: what a query needs of memory, disk and open files, by keys, bytes and partitions.

The figures of ``docs/sizing.md`` come from here. Each line is a run of its own, in a folder of its own: first all keys
are written, then a few batches change some of them. What a process needs is sampled while the batches run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
HEAP = "3g"
KEYS_PER_BATCH = 500_000
CHANGED_KEYS = 50_000
CHANGES = 12
PREFIX = "spark.sql.streaming.stateStore.ckpt."


@dataclass(frozen=True)
class Size:
    """One run: so many keys with values of so many bytes, in so many partitions."""

    keys: int
    partitions: int
    value_bytes: int
    operator: str = "keyed"
    settings: tuple[str, ...] = ()


@dataclass
class Needs:
    """The most that each process had at a time, in bytes, and what is there at the end."""

    heap_bytes: int = 0
    jvm_bytes: int = 0
    server_bytes: int = 0
    worker_bytes: int = 0
    files: int = 0
    disk_bytes: int = 0
    place_bytes: int = 0
    place_objects: int = 0
    batch_ms: list[int] = field(default_factory=list)


class LastValue(ckpt.KeyedProcessor):
    """Keeps a text of each key."""

    last = ckpt.ValueState("last", "string")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """Keep the last one."""
        self.last.update(rows[-1].text)
        yield key.id, len(rows)


class Sampler(threading.Thread):
    """Looks at the processes of a session ten times a second."""

    def __init__(self, needs: Needs, local: Path) -> None:
        super().__init__(daemon=True)
        self._needs, self._local, self._done = needs, local, threading.Event()

    def run(self) -> None:
        """Sample until ``end``."""
        while not self._done.wait(0.2):
            found = {"jvm": 0, "server": 0, "worker": 0}
            files = 0
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):  # it has ended meanwhile
                    kind = _kind(process)
                    memory = process.memory_info().rss if kind == "jvm" else process.memory_full_info().uss
                    found[kind] = max(found[kind], memory) if kind == "worker" else found[kind] + memory
                    files += process.num_fds()
            needs = self._needs
            needs.jvm_bytes = max(needs.jvm_bytes, found["jvm"])
            needs.server_bytes = max(needs.server_bytes, found["server"])
            needs.worker_bytes = max(needs.worker_bytes, found["worker"])
            needs.files = max(needs.files, files)
            needs.disk_bytes = max(needs.disk_bytes, _measure(self._local)[0])

    def end(self) -> None:
        """Stop sampling."""
        self._done.set()
        self.join()


def _kind(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if "java" in Path(process.exe()).name:
        return "jvm"
    return "server" if "state_store.server" in command or "columns" in command else "worker"


def _measure(folder: Path) -> tuple[int, int]:
    """Bytes and number of the files below a folder; a file with several names counts once."""
    sizes = {}
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found = Path(at, name).stat()
                sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values()), len(sizes)


def _write_rows(spark: SparkSession, folder: Path, size: Size) -> None:
    """One folder of Parquet for each batch."""
    count = max(1, size.keys // KEYS_PER_BATCH)
    frames = [spark.range(at * size.keys // count, (at + 1) * size.keys // count) for at in range(count)]
    frames += [spark.range(0, size.keys, max(1, size.keys // CHANGED_KEYS)) for _ in range(CHANGES)]
    text = f"substr(repeat(sha2(string(id + {{}}), 256), {size.value_bytes // 64 + 1}), 1, {size.value_bytes}) AS text"
    for number, frame in enumerate(frames):
        frame.selectExpr("id", text.format(number)).coalesce(1).write.mode("append").parquet(str(folder))


def _query(frame: DataFrame, size: Size) -> DataFrame:
    if size.operator == "keyed":
        return ckpt.keyed(frame, by="id", uid="last").process(LastValue(), output="id long, n long")
    from pyspark.sql import functions as f

    return frame.groupBy("id").agg(f.max("text").alias("text"))


def _run(size: Size) -> Needs:
    from pyspark.sql import SparkSession

    needs = Needs()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", HEAP)
        builder = builder.config("spark.ui.enabled", value=False).config("spark.local.dir", str(folder / "spark"))
        builder = builder.config("spark.sql.shuffle.partitions", size.partitions)
        builder = builder.config(PREFIX + "localDir", str(folder / "local"))
        for setting in size.settings:
            key, _, value = setting.partition("=")
            builder = builder.config(PREFIX + key, value)
        spark = ckpt.configure(builder).getOrCreate()
        _write_rows(spark, folder / "rows", size)
        frame = spark.readStream.schema("id long, text string").option("maxFilesPerTrigger", 1)
        writer = _query(frame.parquet(str(folder / "rows")), size).writeStream.outputMode("update").format("noop")
        sampler = Sampler(needs, folder / "local")
        sampler.start()
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        needs.batch_ms = [each.durationMs["triggerExecution"] for each in query.recentProgress]
        sampler.end()
        memory = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()  # type: ignore[union-attr]
        memory.gc()
        needs.heap_bytes = memory.getHeapMemoryUsage().getUsed()
        needs.place_bytes, needs.place_objects = _measure(folder / "checkpoint" / "state")
        spark.stop()
    return needs


def _print_line(size: Size, needs: Needs) -> None:
    in_mib = [needs.heap_bytes, needs.jvm_bytes, needs.server_bytes, needs.worker_bytes, needs.disk_bytes]
    cells = [size.operator, f"{size.keys:,}", size.value_bytes, size.partitions, " ".join(size.settings)]
    cells += [f"{each / MIB:,.0f}" for each in [*in_mib, needs.place_bytes]]
    changes = sorted(needs.batch_ms[-CHANGES:])
    cells += [f"{needs.place_objects:,}", f"{needs.files:,}", f"{changes[len(changes) // 2]:,}"]
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def main() -> None:
    """Run each size in a process of its own, and print a line of Markdown for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000])
    parser.add_argument("--partitions", type=int, nargs="+", default=[8])
    parser.add_argument("--value-bytes", type=int, nargs="+", default=[32])
    parser.add_argument("--operator", choices=["keyed", "aggregation"], default="keyed")
    parser.add_argument("--setting", action="append", default=[], help="an option of the store: memoryLimit=1g")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print("RESULT", json.dumps(asdict(_run(Size(**json.loads(given.one))))))
        return
    print(
        "| operator | keys | bytes of a value | partitions | options | heap after GC, MiB | JVM, MiB |",
        "state server, MiB | worker, MiB | local disk, MiB | place, MiB | objects | open files |",
        "batch of 50,000 keys, ms |",
    )
    for keys in given.keys:
        for partitions in given.partitions:
            for value_bytes in given.value_bytes:
                size = Size(keys, partitions, value_bytes, given.operator, tuple(given.setting))
                command = [sys.executable, "-m", "integration.sizing", "--one", json.dumps(asdict(size))]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
                if done.returncode or not lines:
                    sys.exit(f"{size}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")
                _print_line(size, Needs(**json.loads(lines[0].removeprefix("RESULT "))))


if __name__ == "__main__":
    main()
