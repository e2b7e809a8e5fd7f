"""stdout and stderr of a command: one may be full or closed, its reader gone, its encoding without some characters.

A character that the encoding lacks is written as its JSON escape, so JSON keeps its meaning. The blocks of a bar chart
become ``#``.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

READER_GONE = 128 + 13
"""The exit code of a program that was ended because nobody reads its output (SIGPIPE)."""

_ESCAPES = "pyspark-ckpt"
_BLOCKS = range(0x2580, 0x25A0)
_STANDARD = range(3)
_STDOUT, _STDERR = 1, 2


class OutputError(Exception):
    """A standard stream is closed, or did not take what was written to it."""

    def __init__(self, stream: str, why: str, *, is_reader_gone: bool = False) -> None:
        """``stream``: its name. ``is_reader_gone``: it is a pipe that nobody reads any more."""
        super().__init__(f"the output could not be written to {stream}: {why}")
        self.stream = stream
        self.is_reader_gone = is_reader_gone


class _Watched:
    """A stream of text, or its binary buffer, that raises OutputError where it would raise OSError."""

    def __init__(self, name: str, below: Any) -> None:  # noqa: ANN401 - a stream of text or bytes
        self._name, self._below = name, below

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what the stream has
        return getattr(self._below, name)

    @property
    def buffer(self) -> _Watched:
        return _Watched(self._name, self._below.buffer)

    def write(self, data: Any) -> Any:  # noqa: ANN401 - text or bytes
        try:
            return self._below.write(data)
        except OSError as problem:
            raise self._name_error(problem) from problem

    def flush(self) -> None:
        try:
            self._below.flush()
        except OSError as problem:
            raise self._name_error(problem) from problem

    def _name_error(self, problem: OSError) -> OutputError:
        why = problem.strerror or str(problem)
        return OutputError(self._name, why, is_reader_gone=problem.errno == errno.EPIPE)


@contextmanager
def watch_streams() -> Iterator[None]:
    """Let stdout and stderr raise OutputError in the block, and escape what their encodings lack.

    At the end all output is written. Raises OutputError, also at the start if stdout is closed.
    """
    _fill_closed()
    if cast("TextIO | None", sys.stdout) is None:
        raise OutputError("stdout", "it is closed")
    with ExitStack() as stack:
        if cast("TextIO | None", sys.stderr) is None:
            sys.stderr = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        before = sys.stdout, sys.stderr
        for stream in before:
            if hasattr(stream, "reconfigure"):  # a notebook may have replaced it
                stream.reconfigure(errors=_ESCAPES)
        sys.stdout = cast("TextIO", _Watched("stdout", sys.stdout))
        sys.stderr = cast("TextIO", _Watched("stderr", sys.stderr))
        try:
            yield
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                sys.stdout, sys.stderr = before


@contextmanager
def print_to_stderr() -> Iterator[None]:
    """Send prints of user code in the block, also in its processes, to stderr: stdout is for the command's output.

    Raises OutputError.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
        sys.stdout.flush()  # what was written past print()
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


def discard_output(stream: str) -> None:
    """Discard unwritten output of the stream: Python would write it at exit, and fail."""
    found = cast("TextIO | None", getattr(sys, stream))
    if found is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, found.fileno())
        os.close(nowhere)


def _fill_closed() -> None:
    """Open closed standard streams on /dev/null. Else the next opened file, perhaps state, gets their number."""
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def _escape(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    lacking = problem.object[problem.start : problem.end]
    return "".join("#" if ord(each) in _BLOCKS else json.dumps(each)[1:-1] for each in lacking), problem.end


codecs.register_error(_ESCAPES, _escape)
