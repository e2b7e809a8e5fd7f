"""State without its query: five million keys are written, changed by a function, and two versions of them compared.

A keyed operator builds the state in one batch, and changes one key in a hundred in each of two more. Then its rows are
written as a savepoint of a query that has never run, each row of the checkpoint is changed by a function, in this
process and in two others, and the last two versions are compared, in this process. A comparison is measured against
the reading of a tenth of one version.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

import pyspark_ckpt as ckpt
from integration.bench.bars import Ratio
from integration.bench.keyed import Vectorised
from integration.bench.rescale import FEW, SMALL_BATCHES, fill
from integration.bench.snapshots import Figure
from integration.bench.variants import PER_KEY_SAVED, RESCALED_KEYED
from integration.bench.workloads import RESCALE
from pyspark_ckpt import writing
from pyspark_ckpt.offline.writing.creation import Writing
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.jobs import LocalProcesses, RunHere, Runner

RUNNERS: tuple[Runner, ...] = (LocalProcesses(2), RunHere())
PART = 10
"""A comparison is measured against the reading of one in so many rows."""


def measure(rounds: int, factor: int, scratch: Path, logs: Path) -> list[Figure]:
    """All bars of state that is written and compared, on ``factor`` times less data."""
    print("offline: 5M keys written, and two versions of them compared", flush=True)
    folder = scratch / "offline"
    workload = replace(RESCALE, keys=RESCALE.keys // factor, partitions=FEW)
    inputs = workload.write(folder, 1 + SMALL_BATCHES + 1)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        per_key = fill(PER_KEY_SAVED, workload, inputs, folder, logs, stack)
        per_key.worker.close()
        subject = fill(RESCALED_KEYED, workload, inputs, folder, logs, stack)
        subject.worker.close()
        built_s, per_key_s = subject.built_ms / 1000, per_key.built_ms / 1000
        with ckpt.reading.open_state(subject.few) as state:
            uid, rows = str(state.state.uid), state.to_arrow()
        written, compared, read, changed = [], [], [], []
        for number in range(rounds):
            written.append(_write(uid, rows, folder / "written"))
            compared.append(_compare(subject.few))
            read.append(_read(subject.few))
            changed.append([_change(subject.few, uid, each, folder / "changed") for each in RUNNERS])
            print(
                f"  round {number + 1}: written {written[-1]:.1f} s, by the query {per_key_s:.1f} s per key and "
                f"{built_s:.1f} s all keys at once; "
                f"compared {compared[-1]:.2f} s, a tenth read {read[-1]:.2f} s; "
                f"changed in {changed[-1][0]:.1f} s by two processes, {changed[-1][1]:.1f} s by one",
                flush=True,
            )
    return [
        Figure(
            "write_state: 5M keys of a value state, over the batch of a keyed operator, per key, that builds them",
            Ratio.of(written, [per_key_s] * len(written)),
            1 / 5,
            f"written {median(written):.1f} s, by the query {per_key_s:.1f} s",
        ),
        Figure(
            "write_state: the same, over all keys at once",
            Ratio.of(written, [built_s] * len(written)),
            1 / 2,
            f"written {median(written):.1f} s, by the query {built_s:.1f} s",
        ),
        Figure(
            "diff of two versions of 5M keys, 1% differ, over reading 10% of one",
            Ratio.of(compared, read),
            1.5,
            f"compared {median(compared):.2f} s, read {median(read):.2f} s",
        ),
        Figure(
            "Transform of 5M keys, two processes over this one",
            Ratio.of(*(list(each) for each in zip(*changed, strict=True))),
            2 / 3,
            " and ".join(f"{median(each):.1f} s" for each in zip(*changed, strict=True)),
        ),
    ]


def _write(uid: str, rows: pa.Table, target: Path) -> float:
    """Write the rows of a state as a savepoint; return the seconds that it took."""
    started = time.perf_counter()
    ckpt.writing.write_state(None, target, [writing.Put(uid, Vectorised.totals, rows, key="key bigint")])
    taken = time.perf_counter() - started
    shutil.rmtree(target)
    return taken


def _change(checkpoint: Path, uid: str, runner: Runner, target: Path) -> float:
    """Change all rows of a state by a function; return the seconds that it took."""

    def double(rows: pa.Table) -> pa.Table:  # copied to the tasks, which need not import the benchmark
        values = rows["value"].combine_chunks()
        doubled = [pc.multiply(each, 2) for each in values.flatten()]
        made = pa.StructArray.from_arrays(doubled, fields=list(values.type))
        return rows.set_column(rows.column_names.index("value"), "value", made)

    started = time.perf_counter()
    options = parse({})
    written = Writing(
        Checkpoint(str(checkpoint), options), str(target), options, runner, _show_nothing, "the benchmark"
    )
    written.run([writing.Transform(uid, "totals", double)])
    taken = time.perf_counter() - started
    shutil.rmtree(target)
    return taken


def _show_nothing(_done: int, _all: int) -> None:
    """Show no progress."""


def _compare(checkpoint: Path) -> float:
    with ckpt.reading.open_state(checkpoint) as state:
        newest, uid, name = state.version, state.state.uid, state.state.name
    started = time.perf_counter()
    with ckpt.reading.diff(checkpoint, checkpoint, uid=uid, state=name, version_a=newest - 1) as differences:
        rows = sum(batch.num_rows for batch in differences.batches())
    assert rows
    return time.perf_counter() - started


def _read(checkpoint: Path) -> float:
    """Return the seconds for a tenth of the rows: of one partition, and of as much of it as that is."""
    started = time.perf_counter()
    with ckpt.reading.open_state(checkpoint) as state:
        rows = sum(batch.num_rows for batch in state.batches(0))
        whole = state.count()
    return float((time.perf_counter() - started) * whole / PART / rows)
