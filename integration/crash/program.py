"""A driver in a process of its own, so that it can be killed: ``python -m integration.crash.program <settings>``.

It starts a session, then obeys orders, one line of JSON each on stdin, and answers each with one line on stdout:
``{"ok": ...}`` or ``{"error": "..."}``. The end of stdin ends it.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_ckpt
from integration.crash import workload
from integration.crash.driver import FORMAT
from integration.operators.placement import stored_rows
from integration.progress import recent_progress
from integration.short import has
from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from pyspark_ckpt.state_store.options import PREFIX, Options, parse

HOLD_LIMIT_S = 150.0
END = "all batches are done"

SLOW_START = "Python worker failed to connect back"
"""What ends a query whose Python process needs more than ten seconds to start: a fixed limit of Spark."""
STARTS = 3


Orders: TypeAlias = Mapping[str, Callable[..., Any]]


def main() -> int:
    """Serve until stdin ends."""
    return serve({"run": run, "state": state, "savepoint": savepoint, "restore": restore})


def serve(orders: Orders, **options: Any) -> int:  # noqa: ANN401 - those of configure()
    """Obey ``orders`` by their names, with the session as the first argument, until stdin ends."""
    builder = pyspark_ckpt.configure(SparkSession.builder, **options)
    for key, value in json.loads(sys.argv[1]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _answer({"ok": "ready"})
    for line in sys.stdin:
        order = json.loads(line)
        try:
            _answer({"ok": orders[order.pop("order")](spark, **order)})
        except Exception:  # noqa: BLE001 - whatever it is, the test must be told
            _answer({"error": traceback.format_exc()})
    spark.stop()
    return 0


def run(spark: SparkSession, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run queries side by side to their ends; each is described by the arguments of ``start``.

    One that the machine was too slow for is started again, and goes on from its checkpoint.
    """
    queries = [start(spark, **each) for each in runs]
    failures = []
    for number, each in enumerate(runs):
        failure = _end_of(queries[number])
        for _ in range(STARTS - 1):
            if failure and SLOW_START in failure:
                queries[number] = start(spark, **each)
                failure = _end_of(queries[number])
        if failure:
            failures.append(failure)
    if failures:
        raise RuntimeError("\n".join(failures))
    return [
        {
            "batches": [progress.batchId for progress in recent],
            "restores": sum(map(_restores, recent)),
            "metrics": sorted({name for last in recent[-1:] for name in _metric_names(last)}),
        }
        for recent in map(recent_progress, queries)
    ]


def start(
    spark: SparkSession,
    *,
    name: str,
    folder: str,
    checkpoint: str = "",
    until: int = workload.BATCHES,
    conf: Mapping[str, str] | None = None,
    fault: Mapping[str, Any] | None = None,
    weight: int = 1,
    hold: Mapping[str, Any] | None = None,
    fail_at: int | None = None,
    pace_s: float = 0,
    program_may_change: bool = False,
) -> StreamingQuery:
    """Start query ``name`` on the checkpoint and the output in ``folder``; it ends before batch ``until``.

    ``checkpoint``: where else the checkpoint is.
    ``hold`` = {"batch", "file"}: that batch does not end before a file of this pattern is there. With a "mark", this
    file is made when the batch waits.
    ``pace_s``: seconds from the begin of one batch to that of the next one, at least.
    ``fail_at``: the sink raises in that batch, after the operators have committed their state.
    """
    session = _session(spark, {**workload.SETTINGS, **(conf or {})})
    described = workload.Fault(**fault) if fault else None
    frame = workload.build(session, name, described, weight)

    def write(rows: DataFrame, batch: int) -> None:
        if batch == until:
            raise RuntimeError(END)
        write_once(Path(folder) / "output", rows, batch, program_may_change=program_may_change)
        if hold and hold["batch"] == batch:
            if "mark" in hold:
                Path(hold["mark"]).touch()
            _wait_for(hold["file"])
        if fail_at == batch:
            raise RuntimeError("made-up failure of the sink")

    return (
        frame.writeStream.outputMode(workload.output_mode(name))
        .option("checkpointLocation", checkpoint or str(Path(folder) / "checkpoint"))
        .foreachBatch(write)
        .trigger(processingTime=f"{pace_s} seconds")
        .start()
    )


def state(
    spark: SparkSession, name: str, folder: str, conf: Mapping[str, str] | None = None, checkpoint: str = ""
) -> list[list[str]]:
    """All rows of the state of query ``name``, as sorted text, one list for each view."""
    checkpoint = checkpoint or str(Path(folder) / "checkpoint")
    options = parse({key.removeprefix(PREFIX): each for key, each in (conf or {}).items() if key.startswith(PREFIX)})
    if name in ("keyed", "groups") or not has("4.0"):  # Spark's reader, new in 4.0, shows Spark's own states
        return [sorted(map(repr, stored_rows(checkpoint, options)))]
    # Before 4.3, Spark's reader reads the logs of one checkpoint format, that of its session.
    own = {} if has("4.3") else {FORMAT: _find_format(checkpoint, options)}
    session = _session(spark, {**(conf or {}), **own})
    return [
        sorted(map(repr, session.read.format("statestore").options(**view).load(checkpoint).collect()))
        for view in workload.state_views(name)
    ]


def _find_format(checkpoint: str, options: Options) -> str:
    """The checkpoint format of the newest commit, which begins with a line such as ``v2``."""
    place = Checkpoint(checkpoint, options).place
    return place.get(f"commits/{max(list_batches(place, 'commits'))}").split(b"\n")[0].decode().removeprefix("v")


def savepoint(_spark: SparkSession, checkpoint: str, target: str, stuck_at: str = "") -> int:
    """Take a savepoint; its version. See ``stick``."""
    stick(stuck_at)
    return savepoints.savepoint(checkpoint, target).version


def restore(_spark: SparkSession, saved: str, target: str, parallelism: int, stuck_at: str = "") -> int:
    """Make a checkpoint of a savepoint; its version. See ``stick``."""
    stick(stuck_at)
    return savepoints.restore(saved, target, parallelism=parallelism).version


def stick(name: str) -> None:
    """From now on, never get beyond writing the object ``name`` of a local place: so a kill always comes before it."""
    put = LocalPlace.put

    def stuck(place: LocalPlace, written: str, data: bytes) -> None:
        if written == name:
            time.sleep(HOLD_LIMIT_S)
            raise AssertionError(f"nobody has killed what was to write {name}")
        put(place, written, data)

    LocalPlace.put = stuck  # type: ignore[method-assign,assignment]  # of this process, which is there to be killed


def _session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    session = spark.newSession()
    for key, value in conf.items():
        session.conf.set(key, value)
    return session


def write_once(output: Path, rows: DataFrame, batch: int, *, program_may_change: bool) -> None:
    """Keep the rows of a batch under its id. A batch that runs again must come to the same rows."""
    text = json.dumps(sorted(map(repr, rows.collect())), indent=0)
    # The end of its socket is the end of the rows to PySpark, also when the JVM was killed before it had sent them.
    # A JVM that still answers had not been killed then.
    rows.sparkSession.conf.get("spark.app.id")
    path = output / f"{batch}.json"
    output.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_text(encoding="utf-8") != text and not program_may_change:
        raise RuntimeError(f"batch {batch} came to other rows when it ran again: {path.read_text()} and then {text}")
    staged = path.with_suffix(".staged")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)


def _wait_for(pattern: str) -> None:
    path = Path(pattern)
    deadline = time.monotonic() + HOLD_LIMIT_S
    while not any(Path(path.anchor).glob(str(path.relative_to(path.anchor)))):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{pattern} did not appear")
        time.sleep(0.02)


def _end_of(query: StreamingQuery) -> str | None:
    try:
        query.awaitTermination()
    except Exception as problem:  # noqa: BLE001 - told to the test, which knows what it expects
        if END in str(problem):
            return None
        return f"{type(problem).__name__}: {problem}"
    return None


def _restores(progress: Any) -> int:  # noqa: ANN401 - PySpark's own type has no public name
    return sum(operator.customMetrics.get("ckptRestores", 0) for operator in progress.stateOperators)


def _metric_names(progress: Any) -> set[str]:  # noqa: ANN401 - PySpark's own type has no public name
    return {name for operator in progress.stateOperators for name in operator.customMetrics}


def _answer(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
