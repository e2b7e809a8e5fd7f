"""The lives of a query that ``crash`` kills: each has a driver of its own, in a process of its own."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from os import environ, pathsep
from pathlib import Path
from typing import Any

from pyspark_ckpt.savepoints import restore
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF
from pyspark_ckpt.state_store.errors import ProcessError
from pyspark_ckpt.state_store.failpoints import FOLDER
from pyspark_ckpt.state_store.options import PREFIX
from pyspark_ckpt.testing.crashes.faults import (
    DRIVER,
    EXECUTOR,
    PAUSED_DRIVER,
    PAUSED_SERVER,
    PAUSES,
    REPLACED,
    Faults,
)
from pyspark_ckpt.testing.crashes.job import STARTED, Job
from pyspark_ckpt.testing.crashes.processes import (
    EXECUTOR_JVM,
    JVM,
    MARK,
    STATE_SERVER,
    find_marked,
    find_workers,
    kill,
    kill_marked,
    pause,
    resume,
)

LOOK_S = 0.05
END_S = 120.0
"""Within this time, a driver must end that wakes up after another one has taken its place."""
MAX_LIVES = 20
"""After so many lives, the query counts as one that never ends."""
LOG_CHARACTERS = 4000


class Query:
    """A query in a folder, through its lives."""

    def __init__(self, job: Job, folder: Path, timeout_s: float) -> None:
        folder.mkdir(parents=True)
        self._job = replace(job, checkpoint=str(folder / "checkpoint"), output=str(folder / "output"))
        self._folder, self._timeout_s = folder, timeout_s
        self.log = folder / "log"
        self.lives = 0
        self.seconds = 0.0
        self._replaced: dict[str, subprocess.Popen[str]] = {}
        """Drivers that sleep or have woken up, while another one has their place, by their marks."""

    def live(self, faults: Faults) -> bool:
        """Run the query until it ends; return whether it has read all of its input.

        Raises ProcessError (it failed without a fault, or never ends).
        """
        self.lives += 1
        is_alone = not self._replaced
        if self.lives > MAX_LIVES:
            raise ProcessError(f"The query has not ended after {MAX_LIVES} lives; its log is {self.log}.")
        before, local = len(faults.done), self._folder / f"local-{self.lives}"
        own = {f"{PREFIX}localDir": str(local), f"{PREFIX}failPoints": faults.points}
        path, mark = self._folder / "job", uuid.uuid4().hex
        replace(self._job, conf={**self._job.conf, **own}).write(path)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_ckpt.testing.crashes.program", str(path)],
                stdout=subprocess.PIPE, stderr=log, env=_environment(self._folder, mark), text=True,
            )  # fmt: skip
        try:
            self._watch(process, mark, faults)
        finally:
            if mark not in self._replaced:
                kill_marked(mark)
                process.wait()
        self._end_replaced(mark)
        faults.note_fired(file.name for file in local.rglob(f"{FOLDER}/*"))
        if process.returncode == 0:
            return True
        if is_alone and len(faults.done) == before:
            text = self.log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
            raise ProcessError(f"The query failed without a fault. Its log ends with:\n{text}")
        return False

    def close(self) -> None:
        """End all of its processes."""
        for mark, process in self._replaced.items():
            kill_marked(mark)
            process.wait()

    def _watch(self, process: subprocess.Popen[str], mark: str, faults: Faults) -> None:
        """Kill, pause or replace parts of a life until it ends."""
        with closing(process.stdout or io.StringIO()) as lines:
            any(line.strip() == STARTED for line in lines)  # or its end
            self._wake_replaced()
            begin = last = time.monotonic()
            kind, after_s = faults.draw_kill()
            while process.poll() is None:
                now = time.monotonic()
                if kind and now - last >= after_s and (victims := _VICTIMS[kind](mark)):
                    faults.note(kind)
                    if kind == REPLACED:
                        self._replaced[mark] = process
                        for victim in victims:
                            pause(victim)
                        return
                    if kind in PAUSES:
                        pause(victims[0])
                        time.sleep(faults.draw_pause_s())
                        resume(victims[0])
                    else:
                        kill(victims[0])
                    if kind == DRIVER:
                        process.kill()
                    last, (kind, after_s) = now, faults.draw_kill()
                if now - begin > self._timeout_s:
                    raise ProcessError(f"The query did not end within {self._timeout_s} s; its log is {self.log}.")
                time.sleep(LOOK_S)
            self.seconds = time.monotonic() - begin

    def _wake_replaced(self) -> None:
        for mark in self._replaced:
            for process in find_marked(mark):
                resume(process)

    def _end_replaced(self, present: str) -> None:
        """Wait for the end of drivers that have woken up. Raises ProcessError if one does not end."""
        for mark in [mark for mark in self._replaced if mark != present]:
            process = self._replaced.pop(mark)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                raise ProcessError(
                    f"A driver that another one has replaced has not ended within {END_S} s; its log is {self.log}."
                ) from None
            finally:
                kill_marked(mark)
                process.wait()

    def rescale(self, partitions: int) -> bool:
        """Continue with a copy of the checkpoint for so many partitions. Return False if no batch has committed."""
        before = Path(self._job.checkpoint)
        if not any((before / "commits").glob("[0-9]*")):
            return False
        after = str(self._folder / f"checkpoint-{self.lives}")
        restore(str(before), after, parallelism=partitions)
        self._job = replace(self._job, checkpoint=after, conf={**self._job.conf, PARTITIONS_CONF: str(partitions)})
        return True

    @property
    def checkpoint(self) -> str:
        """The present checkpoint."""
        return self._job.checkpoint

    def read(self) -> list[dict[str, Any]]:
        """Return the rows of the output, batch by batch."""
        return self._job.read_output()


_VICTIMS: Mapping[str, Callable[[str], list[Any]]] = {
    **dict.fromkeys((DRIVER, PAUSED_DRIVER), lambda mark: find_marked(mark, JVM)),
    **dict.fromkeys(("server", PAUSED_SERVER), lambda mark: find_marked(mark, STATE_SERVER)),
    REPLACED: find_marked,
    "worker": find_workers,
    EXECUTOR: lambda mark: find_marked(mark, EXECUTOR_JVM),
}


def _environment(folder: Path, mark: str) -> dict[str, str]:
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    path = pathsep.join(filter(None, sys.path))
    own = {MARK: mark, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**environ, **own, "TMPDIR": str(temporary)}
