"""A process with one Spark session on one provider. It runs one batch when told to, and sleeps in between.

A query waits inside ``foreachBatch`` for its turn, so that nothing of it runs while another variant is measured:
what it does between two batches (commit log, planning) belongs to its own turn, too.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from integration.bench.keyed import FORMS
from integration.bench.rules import FORMS as RULE_FORMS
from integration.bench.variants import SESSION_SETTINGS, Variant
from integration.bench.workloads import FILES_A_BATCH, SCHEMA, Workload
from integration.progress import recent_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_ckpt.monitoring import Advice

_PATIENCE_S = 300


class _Stopped(Exception):  # noqa: N818 - it ends a query, and is no error
    """The query must end."""


@dataclass(frozen=True)
class Sample:
    """One batch: running it (``execution_ms``), all of its turn (``turn_ms``), and what the query reported of it."""

    batch: int
    execution_ms: float
    turn_ms: float
    commit_ms: float
    state_rows: int
    memory_bytes: int
    open_files: int
    duration_ms: Mapping[str, int] = field(default_factory=dict)
    custom: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Moved:
    """How long a redistribution of state took, and of ours what became of its bytes."""

    seconds: float
    copied_bytes: int = 0
    rewritten_bytes: int = 0


@dataclass(frozen=True)
class Down:
    """How long no query ran while one was rescaled, in seconds, by its parts."""

    stop_s: float
    rescale_s: float
    start_s: float
    first_batch_s: float


class Worker:
    """The parent's handle of one process. Every call blocks until the process has done it."""

    def __init__(self, variant: Variant, log: Path) -> None:
        """Start the process; its output goes to ``log``."""
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, variant, str(log.absolute())), daemon=False)
        with _starting_in(variant.checkout):
            self._process.start()
        other.close()

    def start(self, workload: Workload, inputs: list[Path], checkpoint: Path) -> None:
        """Start the query, and wait until its first batch waits for its turn."""
        self._call("start", workload, [str(each) for each in inputs], str(checkpoint))

    def step(self) -> Sample:
        """Run the next batch."""
        sample: Sample = self._call("step")
        return sample

    def processor_ms(self) -> float:
        """Processor time that the process, its JVM and all that they have started have taken until now."""
        mine = psutil.Process(self._process.pid)
        spent_s = 0.0
        for each in (mine, *mine.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                times = each.cpu_times()
                spent_s += times.user + times.system
        return 1000 * spent_s

    def restart(self) -> None:
        """Stop the query, unload every store, and start the query again: its next batch restores the state."""
        self._call("restart")

    def stop(self) -> None:
        """Stop the query."""
        self._call("stop")

    def unload(self) -> None:
        """Stop the query, and unload every store."""
        self._call("unload")

    def savepoint(self, checkpoint: Path, target: Path) -> float:
        """Take a savepoint of a stopped query; returns the seconds it took."""
        return float(self._call("savepoint", str(checkpoint), str(target)))

    def rescale(self, checkpoint: Path, target: Path, partitions: int) -> Moved:
        """Make ``target`` what the checkpoint of a stopped query is, with so many partitions."""
        moved: Moved = self._call("rescale", str(checkpoint), str(target), partitions)
        return moved

    def rescale_running(self, partitions: int) -> Down:
        """Rescale the query in one call, while it runs a batch; then its next batch waits for its turn."""
        down: Down = self._call("rescale_running", partitions)
        return down

    def advise(self) -> Advice:
        """What ``advise`` says of the running query."""
        advice: Advice = self._call("advise")
        return advice

    def adopt(self, checkpoint: Path, target: Path, partitions: int) -> Moved:
        """Make ``target`` a checkpoint of ours from one of Spark's own provider, with so many partitions."""
        moved: Moved = self._call("adopt", str(checkpoint), str(target), partitions)
        return moved

    def repartition(self, checkpoint: Path, partitions: int) -> Moved:
        """Have Spark repartition the state of a stopped query by a batch of its own."""
        moved: Moved = self._call("repartition", str(checkpoint), partitions)
        return moved

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(30)
        if self._process.is_alive():
            self._process.terminate()

    def _call(self, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - what the method returns
        self._connection.send((method, arguments))
        answer, problem = self._connection.recv()
        if problem is not None:
            raise RuntimeError(problem)
        return answer


class _Gate:
    """Lets the batches of a query through one by one."""

    def __init__(self, of_batch: Callable[[DataFrame], DataFrame]) -> None:
        """Write ``of_batch`` of what a batch brings."""
        self._of_batch = of_batch
        self._arrivals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.execution_ms = 0.0

    def run_batch(self, frame: DataFrame, batch_id: int) -> None:
        """What ``foreachBatch`` calls: wait for the turn, then write the batch to nowhere."""
        self._arrivals.put(batch_id)
        if not self._turns.get():
            raise _Stopped
        started = time.perf_counter()
        self._of_batch(frame).write.format("noop").mode("overwrite").save()
        self.execution_ms = (time.perf_counter() - started) * 1000

    def open(self, *, go_on: bool) -> None:
        self._turns.put(go_on)

    def wait_for_arrival(self, query: StreamingQuery) -> int:
        """Number of the batch that now waits. Raises what ended the query if it ended."""
        for _ in range(_PATIENCE_S):
            try:
                return self._arrivals.get(timeout=1)
            except queue.Empty:
                problem = query.exception()
                if problem is not None:
                    raise problem from None
        raise TimeoutError(f"No batch within {_PATIENCE_S} s.")


class _Session:
    """What runs inside the process."""

    def __init__(self, variant: Variant) -> None:
        self._spark = _session(variant)
        self._stateful = variant.stateful
        self._form = variant.form
        self._gate = _Gate(_as_it_is)
        self._query: StreamingQuery | None = None
        self._started_with: tuple[Workload, list[str], str] | None = None
        self._waiting = -1

    def start(self, workload: Workload, inputs: list[str], checkpoint: str) -> None:
        query = self._begin(workload, inputs, checkpoint)
        self._waiting = self._gate.wait_for_arrival(query)

    def _begin(self, workload: Workload, inputs: list[str], checkpoint: str) -> StreamingQuery:
        self._started_with = (workload, inputs, checkpoint)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(workload.partitions))
        frames = [
            self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_A_BATCH).parquet(each)
            for each in inputs
        ]
        if self._stateful:
            self._gate = _Gate(_as_it_is)
            query = {**FORMS, **RULE_FORMS}[self._form] if self._form else workload.query
            streamed = query(self._spark, frames)
            mode = "append" if workload.name in _APPENDING else "update"
        else:
            self._gate = _Gate(lambda frame: workload.query(self._spark, [frame]))
            (streamed,) = frames
            mode = "append"
        self._query = (
            streamed.writeStream.outputMode(mode)
            .option("checkpointLocation", checkpoint)
            .foreachBatch(self._gate.run_batch)
            .start()
        )
        return self._query

    def step(self) -> Sample:
        query = self._running()
        batch, started = self._waiting, time.perf_counter()
        self._gate.open(go_on=True)
        self._waiting = self._gate.wait_for_arrival(query)
        turn_ms = (time.perf_counter() - started) * 1000
        progress = next(each for each in reversed(recent_progress(query)) if each.batchId == batch)
        operators = progress.stateOperators
        memory_bytes, open_files = _memory_and_files()
        return Sample(
            batch=batch,
            execution_ms=self._gate.execution_ms,
            turn_ms=turn_ms,
            commit_ms=sum(operator.commitTimeMs for operator in operators),
            state_rows=sum(operator.numRowsTotal for operator in operators),
            memory_bytes=memory_bytes,
            open_files=open_files,
            duration_ms=dict(progress.durationMs),
            custom=dict(operators[0].customMetrics) if operators else {},
        )

    def restart(self) -> None:
        started_with = self._started_with
        if started_with is None:
            raise RuntimeError("no query was started")
        self.unload()
        self.start(*started_with)

    def stop(self) -> None:
        query = self._running()
        self._gate.open(go_on=False)
        while query.isActive:
            time.sleep(0.01)
        self._query = None

    def unload(self) -> None:
        self.stop()
        _jvm(self._spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()

    def savepoint(self, checkpoint: str, target: str) -> float:
        import pyspark_ckpt

        started = time.perf_counter()
        pyspark_ckpt.savepoint(checkpoint, target)
        return time.perf_counter() - started

    def rescale(self, checkpoint: str, target: str, partitions: int) -> Moved:
        import pyspark_ckpt

        started = time.perf_counter()
        done = pyspark_ckpt.restore(checkpoint, target, parallelism=partitions)
        return Moved(time.perf_counter() - started, done.copied_bytes, done.rewritten_bytes)

    def rescale_running(self, partitions: int) -> Down:
        import pyspark_ckpt

        query, gate, started_with = self._running(), self._gate, self._started_with
        if started_with is None:
            raise RuntimeError("no query was started")
        workload, inputs, _ = started_with

        def start(checkpoint: str) -> StreamingQuery:
            started = self._begin(replace(workload, partitions=partitions), inputs, checkpoint)
            self._gate.open(go_on=True)
            return started

        threading.Timer(0.2, lambda: gate.open(go_on=True)).start()  # the batch that waits runs when the call has begun
        done = pyspark_ckpt.rescale(query, start, partitions)
        for _ in range(2):  # the first batch, and the one that waits
            self._waiting = self._gate.wait_for_arrival(done.query)
        down = done.downtime
        return Down(down.stop_s, down.rescale_s, down.start_s, down.first_batch_s or 0.0)

    def advise(self) -> Advice:
        import pyspark_ckpt

        return pyspark_ckpt.monitoring.advise(self._running())

    def adopt(self, checkpoint: str, target: str, partitions: int) -> Moved:
        import pyspark_ckpt

        started = time.perf_counter()
        done = pyspark_ckpt.moving.adopt(checkpoint, target, partitions)
        return Moved(time.perf_counter() - started, done.copied_bytes, done.rewritten_bytes)

    def repartition(self, checkpoint: str, partitions: int) -> Moved:
        started = time.perf_counter()
        # The batch that waited when the query was stopped is skipped: it is to be passed over by name.
        self._spark._streamingCheckpointManager.repartition(checkpoint, partitions, enforce_exactly_once_sink=False)
        return Moved(time.perf_counter() - started)

    def close(self) -> None:
        if self._query is not None:
            self.stop()
        self._spark.stop()

    def _running(self) -> StreamingQuery:
        if self._query is None:
            raise RuntimeError("no query runs")
        return self._query


_APPENDING = ("dedup", "dedup-watermark", "sessions", "join")


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


def _session(variant: Variant) -> SparkSession:
    from pyspark.sql import SparkSession

    import pyspark_ckpt

    builder = SparkSession.builder.master("local[2]").appName(f"bench {variant.name}")
    if variant.ours:
        builder = pyspark_ckpt.configure(builder)
    for key, value in {**SESSION_SETTINGS, **variant.settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _memory_and_files() -> tuple[int, int]:
    """Bytes of memory and open files of the JVM and of all that it has started: the state server is one of these."""
    memory_bytes = open_files = 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            memory_bytes += process.memory_info().rss
            open_files += process.num_fds()
    return memory_bytes, open_files


def _jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - py4j
    return spark._jvm


def _serve(connection: Connection, variant: Variant, log: str) -> None:
    with _output_in(Path(log)):
        session = _Session(variant)
        try:
            while True:
                try:
                    method, arguments = connection.recv()
                except EOFError:
                    return
                try:
                    connection.send((getattr(session, method)(*arguments), None))
                except Exception as problem:  # noqa: BLE001 - the parent raises it
                    connection.send((None, f"{variant.name}, {method}: {problem}"))
        finally:
            session.close()


@contextmanager
def _starting_in(checkout: Path | None) -> Iterator[None]:
    """Let a process that is spawned meanwhile run the code of ``checkout``, and all that it starts as well.

    A spawned process takes over the working directory, the module path and the interpreter from here.
    """
    if checkout is None:
        yield
        return
    folder, executable, path = Path.cwd(), spawn.get_executable(), list(sys.path)
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    spawn.set_executable(str(checkout / ".venv" / "bin" / "python"))
    try:
        yield
    finally:
        os.chdir(folder)
        sys.path[:] = path
        spawn.set_executable(executable)


@contextmanager
def _output_in(log: Path) -> Iterator[None]:
    log.parent.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with log.open("ab", buffering=0) as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        yield
