"""The web page on a checkpoint of 200 partitions and 1,000 batches in S3, with 50 ms of latency.

The checkpoint is as a query with the default retention leaves it: the deltas of the newest versions, and two snapshots
of each store, written by the store's own code. A page is measured in a process that was just started, as somebody who
is called at night finds it: its first request imports, opens, lists and renders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

import msgspec
import numpy as np

from integration.bench.bars import Ratio
from integration.bench.latency import far_away
from integration.bench.snapshots import LATENCY_S, QUERY, Figure
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.delta import read_delta, write_delta
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker, encode_hashed_key
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor, StoreMeta
from pyspark_ckpt.state_store.format.names import DeltaName, new_id
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.snapshots.writer import SnapshotWriter
from tests.services.s3_server import running

PARTITIONS, BATCHES = 200, 1000
KEPT = 110
"""Versions below the newest that are kept: Spark's 100, and those back to the next snapshot."""
LAG = 10
ROWS = 20
BAR_S = 2.0
THREADS = 8
PATIENCE_S = 60
PAGES = ("/", "/c/0", "/c/0/history", "/c/0/states", "/c/0/partitions", "/c/0/key")

_KEY = {"type": "struct", "fields": [{"name": "user", "type": "string", "nullable": True, "metadata": {}}]}
_VALUE = {"type": "struct", "fields": [{"name": "views", "type": "long", "nullable": False, "metadata": {}}]}
_TUNING = Tuning(1 << 20)


def measure(rounds: int, factor: int, scratch: Path, _logs: Path) -> list[Figure]:
    """The bar of the first page, and what other pages take, on a checkpoint with ``factor`` times fewer partitions."""
    partitions = max(2, PARTITIONS // factor)
    print(f"serve: the web page on {partitions} partitions and {BATCHES} batches in S3", flush=True)
    with ExitStack() as stack:
        service = stack.enter_context(running(scratch / "serve-s3"))
        location = service.new_folder()
        started = time.perf_counter()
        write_checkpoint(location, service.options, partitions, BATCHES, KEPT)
        print(f"  written in {time.perf_counter() - started:.0f} s", flush=True)
        endpoint = stack.enter_context(far_away(service.endpoint, LATENCY_S))
        runs = [_time_pages(location, {**service.options, "s3Endpoint": endpoint}) for _ in range(rounds)]
    firsts = [run["/"] for run in runs]
    others = ", ".join(f"{page} {median(run[page] for run in runs):.2f} s" for page in ("start", *PAGES))
    detail = f"in a new process: {others}; the slowest first page {max(firsts):.2f} s"
    what = f"the first page of {partitions} partitions and {BATCHES} batches in S3, 50 ms a request, over {BAR_S:.0f} s"
    return [Figure(what, Ratio.of(firsts, [BAR_S] * len(firsts)), 1.0, detail)]


def write_checkpoint(location: str, options: dict[str, str], partitions: int, batches: int, kept: int) -> None:
    """Write what a query has left after so many batches: deltas of ``kept`` versions, two snapshots, logs."""
    workplace = Workplace(parse(options))
    place = workplace.place(location)
    stores = [Identity(0, partition, "default") for partition in range(partitions)]
    first = batches - kept
    with ThreadPoolExecutor(THREADS) as pool:
        ids = list(pool.map(lambda each: _write_store(workplace, place, each, partitions, first, batches), stores))
    place.put("metadata", json.dumps({"id": QUERY}).encode())
    info = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
    }
    place.put("state/0/_metadata/metadata", b"v1\n" + json.dumps(info).encode())
    for batch in range(first, batches):
        entry = {"batchWatermarkMs": 0, "batchTimestampMs": 1000 * batch, "conf": {}}
        place.put(f"offsets/{batch}", b'v1\n%s\n{"logOffset":%d}' % (json.dumps(entry).encode(), batch))
        named = {"0": [[each[batch - first]] for each in ids]}
        place.put(
            f"commits/{batch}", b"v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": named}).encode()
        )


def _write_store(
    workplace: Workplace, checkpoint: BlobPlace, identity: Identity, partitions: int, first: int, last: int
) -> list[str]:
    """Write the versions after ``first`` of one store; their ids."""
    place = workplace.place(f"{checkpoint.url}/{store_folder(identity)}")
    rng = np.random.default_rng(identity.partition)
    meta = msgspec.structs.replace(EMPTY_META, version=first, id=new_id(), num_partitions=partitions)
    ids = []
    with workplace.folder() as folder:
        for version in range(first + 1, last + 1):
            before = meta
            meta, number = before.with_state("default", Descriptor(key_schema=_KEY, value_schema=_VALUE), keyed=False)
            meta = meta.commit(new_id(), {number: ROWS if version == first + 1 else 0}, partitions)
            hashes = range(identity.partition, identity.partition + ROWS * partitions, partitions)
            rows = {encode_hashed_key(number, each, each.to_bytes(8, "big")): rng.bytes(24) for each in hashes}
            path = folder / f"{version}.sst"
            write_table_file(path, sorted({MARKER_KEY: meta.marker.encode(), **rows}.items()), _TUNING)
            write_delta(place, DeltaName(meta.marker, Marker(before.version, before.id)), meta, [path])
            path.unlink()
            ids.append(meta.id)
            if version in (first + 1, last - LAG):
                _write_snapshot(workplace, place, identity, meta, is_first=version == first + 1)
    return ids


def _write_snapshot(
    workplace: Workplace, place: BlobPlace, identity: Identity, meta: StoreMeta, *, is_first: bool
) -> None:
    with workplace.folder() as folder:
        log = StoreLog(f"bench.{identity.short}", identity.short)
        writer = SnapshotWriter(place, identity.partition, _TUNING, FailPoints(""), log, full=False)
        if is_first:
            _open_first(place, meta, folder / "copy")
        else:
            version = StoreVersion(identity, place.url, meta)
            with workplace.restore(version, folder / "copy") as restored:
                restored.database.close()
        if writer.publish(LocalCopy(folder / "copy", meta), Lineage.read(place), lambda: False) is None:
            raise RuntimeError(f"no snapshot of {identity}")


def _open_first(place: BlobPlace, meta: StoreMeta, folder: Path) -> None:
    """Make the database of the first version from its delta alone, which has all rows."""
    lineage = Lineage.read(place)
    name, blob = lineage.deltas[meta.marker]
    delta = read_delta(place, name, blob.size_bytes, folder.with_name("delta"))
    folder.mkdir()
    database = Database(folder / "db", _TUNING)
    database.ingest(delta.files)
    database.close()


def _time_pages(location: str, options: dict[str, str]) -> dict[str, float]:
    """Seconds of a start of the program, and of the pages in turn."""
    given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    command = [sys.executable, "-m", "pyspark_ckpt", "query", "serve", location, *given]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("no output")
        base, _, token = process.stdout.readline().strip().partition("/?token=")
        times = {"start": time.perf_counter() - started}
        for page in PAGES:
            request = Request(f"{base}{page}", headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - http
            started = time.perf_counter()
            with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
                answer.read()
            times[page] = time.perf_counter() - started
    finally:
        process.terminate()
        process.wait()
    return times
