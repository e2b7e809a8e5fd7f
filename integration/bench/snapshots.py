"""Snapshots and restores of the engine alone: no Spark, so that nothing else takes its time.

A store is driven as the shim drives it: table files in a staging folder, then a commit. Everything is local, with
the page cache warm, but for the commits beside an upload, which go to a real S3 service with 50 ms of latency.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from integration.bench.bars import Ratio
from integration.bench.latency import far_away
from pyspark_ckpt.state_store import options as option_table
from pyspark_ckpt.state_store.database import Tuning, write_table_file
from pyspark_ckpt.state_store.format.keys import encode_hashed_key
from pyspark_ckpt.state_store.server.homes import lock_folder
from pyspark_ckpt.state_store.server.received_secrets import ReceivedSecrets
from pyspark_ckpt.state_store.server.rpc import Dispatcher
from pyspark_ckpt.state_store.server.stores import Stores
from tests.services.s3_server import running

QUERY = "7f4a9a0e-0000-4000-8000-123456789abc"
LATENCY_S = 0.05
MEMORY = "2g"  # of an executor: an eighth of it is the state server's
KEYS, CHANGED = 2_000_000, 20_000
INCREMENTS = 20
COMMITS = 15
LARGE_VALUE_BYTES = 1000
LARGE_ROWS = 1_100_000

_DESCRIPTOR = {"ordered": False, "multiple_values": False, "internal": False}
_TUNING = Tuning(1 << 20)


@dataclass(frozen=True)
class Figure:
    """One bar of the engine and what was measured; ``detail`` is for people."""

    what: str
    ratio: Ratio
    limit: float
    detail: str

    @property
    def passed(self) -> bool:
        """Whether the median keeps the bar."""
        return self.ratio.middle <= self.limit


class Engine:
    """A state server in this process with one store of one query."""

    def __init__(self, folder: Path, **options: str) -> None:
        """Keep everything below ``folder``."""
        self.checkpoint = folder / "checkpoint"
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
        self._options = {"compression": "none", "memoryLimit": MEMORY, **options}
        self._folder = folder
        self._start("local")
        self.version, self.id = 0, None

    def _start(self, name: str) -> None:
        folder = lock_folder(self._folder / name)
        assert folder is not None
        self._stores = Stores(folder, option_table.parse(self._options))
        self._dispatcher = Dispatcher(self._stores, lambda: None, ReceivedSecrets())
        self.handle = self.call(
            "open",
            state_dir=str(self.remote),
            checkpoint_root=str(self.checkpoint),
            operator=0,
            partition=0,
            name="default",
            run_id="bench",
            format=2,
            min_versions_to_retain=100,
            options=self._options,
        )["handle"]

    @property
    def remote(self) -> Path:
        """Where the store's objects are."""
        return self.checkpoint / "state" / "0" / "0"

    def call(self, method: str, **request: object) -> dict[str, Any]:
        """As the shim calls."""
        answer = json.loads(self._dispatcher.call(method, json.dumps(request)))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        ok: dict[str, Any] = answer["ok"]
        return ok

    def commit(self, rows: Iterator[tuple[bytes, bytes]] | Sequence[tuple[bytes, bytes]], new_rows: int = 0) -> float:
        """Commit sorted rows; returns the seconds of the commit call alone."""
        begun = self.begin()
        state = self.call("create_state", txn=begun["txn"], name="default", descriptor=_DESCRIPTOR)["number"]
        marker = (base64.b64decode(begun["marker_key"]), base64.b64decode(begun["next_marker_value"]))
        keyed = ((encode_hashed_key(state, int.from_bytes(key[:4], "big"), key), value) for key, value in rows)
        write_table_file(Path(begun["staging"]) / "0.sst", chain([marker], keyed), _TUNING)
        started = time.perf_counter()
        done = self.call("commit", txn=begun["txn"], files=["0.sst"], rows={str(state): new_rows}, num_partitions=1)
        took_s = time.perf_counter() - started
        self.version, self.id = done["version"], done["id"]
        return took_s

    def begin(self) -> dict[str, Any]:
        """Begin on the newest version."""
        return self.call("begin", handle=self.handle, version=self.version, id=self.id)

    def confirm(self) -> None:
        """Let the newest version be one that was asked for."""
        self.call("abort", txn=self.begin()["txn"])
        self.call("await_ingest", handle=self.handle)

    def snapshot(self) -> dict[str, Any]:
        """Make a snapshot of the newest version; returns its metrics."""
        self.confirm()
        metrics: dict[str, Any] = self.call("snapshot", handle=self.handle, force=True)["metrics"]
        return metrics

    def restore(self, name: str) -> tuple[float, dict[str, Any]]:
        """Restore the newest version on a new machine ``name``; seconds of ``begin``, and its metrics."""
        self._stores.shut_down()
        self._start(name)
        started = time.perf_counter()
        begun = self.begin()
        took_s = time.perf_counter() - started
        self.call("abort", txn=begun["txn"])
        return took_s, begun["metrics"]

    def close(self) -> None:
        """End the server."""
        self._stores.shut_down()


def measure(rounds: int, factor: int, scratch: Path, _logs: Path) -> list[Figure]:
    """All bars of the engine, on ``factor`` times less data."""
    figures = []
    for name, figure in (("increments", _increments), ("restore", _restore), ("upload", _beside_an_upload)):
        print(f"engine, {name}", flush=True)
        folder = scratch / f"engine-{name}"
        figures.append(figure(rounds, factor, folder))
        shutil.rmtree(folder, ignore_errors=True)
    return figures


def _keys(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> list[bytes]:
    """Keys whose first four bytes are spread like a hash, sorted."""
    hashes = (numbers * 2654435761) % (1 << 32)
    order = np.argsort(hashes, kind="stable")
    return [int(hashes[n]).to_bytes(4, "big") + int(numbers[n]).to_bytes(8, "big") for n in order]


def _increments(_rounds: int, factor: int, folder: Path) -> Figure:
    """Bytes of incremental snapshots after a change of one per cent, over those of the first, full one."""
    keys, changed, rng = KEYS // factor, CHANGED // factor, np.random.default_rng(1)
    engine = Engine(folder)
    with ExitStack() as stack:
        stack.callback(engine.close)
        engine.commit([(key, rng.bytes(16)) for key in _keys(np.arange(keys))], keys)
        full = engine.snapshot()
        increments = []
        for _ in range(INCREMENTS):
            some = _keys(rng.choice(keys, changed, replace=False))
            engine.commit([(key, rng.bytes(16)) for key in some])
            increments.append(engine.snapshot())
    bytes_up = [each["uploaded_bytes"] for each in increments]
    objects = [each["uploaded_files"] for each in increments]
    detail = (
        f"full {full['uploaded_bytes'] / 1e6:.1f} MB in {full['uploaded_files']} objects; {INCREMENTS} increments: "
        f"{median(bytes_up) / 1e6:.1f} MB in {median(objects):.0f} objects, "
        f"the largest {max(bytes_up) / 1e6:.1f} MB, together {sum(bytes_up) / 1e6:.1f} MB"
    )
    ratio = Ratio.of(bytes_up, [full["uploaded_bytes"]] * len(bytes_up))
    return Figure("bytes of an incremental snapshot over a full one, 1% of 2M keys changed", ratio, 0.15, detail)


def _restore(rounds: int, factor: int, folder: Path) -> Figure:
    """Restores of 1 GB over ``cp -r`` of the same objects, in turn."""
    rows, rng = LARGE_ROWS // factor, np.random.default_rng(2)
    engine = Engine(folder)
    with ExitStack() as stack:
        stack.callback(engine.close)
        portion = max(1, rows // 8)
        for first in range(0, rows, portion):
            numbers = np.arange(first, min(first + portion, rows))
            engine.commit(((key, rng.bytes(LARGE_VALUE_BYTES)) for key in _keys(numbers)), len(numbers))
        engine.snapshot()
        size = sum(path.stat().st_size for path in (engine.remote / "sst").iterdir())
        ours, copies = [], []
        for number in range(rounds + 1):
            took_s, metrics = engine.restore(f"restored-{number}")
            started = time.perf_counter()
            subprocess.run(["/bin/cp", "-r", engine.remote / "sst", folder / "copy"], check=True)
            copies.append(time.perf_counter() - started)
            ours.append(took_s)
            shutil.rmtree(folder / "copy")
            assert metrics["replayed_deltas"] == 0
            assert metrics["downloaded_bytes"] == size
    detail = f"{size / 1e9:.2f} GB, page cache warm: ours {median(ours[1:]):.2f} s, cp -r {median(copies[1:]):.2f} s"
    return Figure("a restore from a local disk over cp -r", Ratio.of(ours[1:], copies[1:]), 2.0, detail)


def _beside_an_upload(rounds: int, factor: int, folder: Path) -> Figure:
    """Commits while a full snapshot goes up, over those while none does."""
    keys, rng = KEYS // factor, np.random.default_rng(3)
    with ExitStack() as stack:
        service = stack.enter_context(running(folder / "s3"))
        endpoint = stack.enter_context(far_away(service.endpoint, LATENCY_S))
        reach = {**service.options, "s3Endpoint": endpoint, "remote": service.new_folder()}
        engine = Engine(folder, snapshotMode="full", **reach)
        stack.callback(engine.close)
        engine.commit([(key, rng.bytes(100)) for key in _keys(np.arange(keys))], keys)
        alone, beside, sizes = [], [], []
        for _ in range(rounds):
            alone.append(median(_small_commit(engine, keys, rng) for _ in range(COMMITS)))
            engine.confirm()
            answers: list[dict[str, Any]] = []
            upload = threading.Thread(
                target=lambda: answers.append(engine.call("snapshot", handle=engine.handle, force=True))  # noqa: B023
            )
            upload.start()
            during = []
            while upload.is_alive():
                during.append(_small_commit(engine, keys, rng))
            upload.join()
            sizes.append(answers[0]["metrics"]["uploaded_bytes"])
            beside.append(median(during[:-1] or during))
    detail = (
        f"commits of 1,000 rows, 50 ms a request: {median(alone) * 1000:.0f} ms, and {median(beside) * 1000:.0f} ms "
        f"while {median(sizes) / 1e6:.0f} MB go up"
    )
    return Figure("a commit while a snapshot goes up over one while none does", Ratio.of(beside, alone), 1.2, detail)


def _small_commit(engine: Engine, keys: int, rng: np.random.Generator) -> float:
    some = _keys(rng.choice(keys, min(1000, keys), replace=False))
    return engine.commit([(key, rng.bytes(100)) for key in some])
