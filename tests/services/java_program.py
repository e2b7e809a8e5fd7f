"""A Java program of the tests, one file of source, that says a line when it is ready and obeys lines."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

JAVA = (f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java", "-Xmx320m")
SHORT_LIFE = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
START_S = 180
END_S = 60


@contextmanager
def running(
    program: Path,
    class_path: Sequence[Path],
    argument: Path,
    log_path: Path,
    flags: Sequence[str] = SHORT_LIFE,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """The program, in a JVM with ``flags``. The end of its stdin ends it, also when this process is killed.

    ``environment``: its variables, if not those of this process.
    """
    path = os.pathsep.join(map(str, class_path))
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*JAVA, *flags, "-cp", path, str(program), str(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
        )
    try:
        yield process
    finally:
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def tell(stream: IO[Any] | None, order: str) -> None:
    """Give the program an order."""
    assert stream is not None
    stream.write(f"{order}\n")
    stream.flush()


def next_line(process: subprocess.Popen[str]) -> str:
    """What the program says next."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], START_S)[0]:
        process.kill()
    line = process.stdout.readline().rstrip("\n")
    assert line, f"the program has ended: {' '.join(map(str, process.args))}"  # type: ignore[arg-type]
    return line
