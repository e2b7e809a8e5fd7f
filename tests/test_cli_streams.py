"""The command line when its output cannot be written, nobody reads it, its encoding is poor, or it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from tests.compat.frozen import unpack
from tests.labs.saved_query import files, written

COMMAND = (sys.executable, "-m", "pyspark_ckpt")
FULL = Path("/dev/full")
WORDS = ("--uid", "kinds", "--state", "words")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(unpack("v1", "keyed", tmp_path_factory.mktemp("frozen") / "keyed"))


def calls(checkpoint: str) -> list[tuple[str, ...]]:
    """One call of each way to write: click, tables, bars, JSON, CSV, lines."""
    return [
        ("--help",),
        ("--version",),
        ("checkpoint", "list", checkpoint),
        ("checkpoint", "inspect", checkpoint),
        ("checkpoint", "verify", checkpoint, "--json"),
        ("state", "read", checkpoint, *WORDS, "--format", "csv"),
        ("state", "read", checkpoint, *WORDS, "--format", "json"),
    ]


def wrong_calls(checkpoint: str) -> list[tuple[str, ...]]:
    """Calls that are refused by click, and by the command."""
    return [("nothing",), ("state", "read", checkpoint, "--uid", "nobody")]


def run_in_shell(streams: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with its ``streams`` redirected as in a shell."""
    shell = ("sh", "-c", f'exec "$@" {streams}', "sh")
    return subprocess.run((*shell, *COMMAND, *arguments), capture_output=True, text=True, check=False)


@pytest.mark.in_turn
@pytest.mark.skipif(not FULL.exists(), reason="only Linux has /dev/full")
def test_a_full_output_is_named_in_one_line(checkpoint: str) -> None:
    for call in calls(checkpoint):
        done = run_in_shell(f">{FULL}", *call)
        assert (done.returncode, done.stderr) == (
            1,
            "pyspark-ckpt: the output could not be written to stdout: No space left on device\n",
        ), call


def test_a_closed_output_is_refused_before_anything_is_done(checkpoint: str, tmp_path: Path) -> None:
    target = tmp_path / "new"
    for call in (*calls(checkpoint), ("checkpoint", "rescale", checkpoint, str(target), "-n", "3")):
        done = run_in_shell(">&-", *call)
        assert (done.returncode, done.stderr) == (
            1,
            "pyspark-ckpt: the output could not be written to stdout: it is closed\n",
        ), call
    assert not target.exists()


@pytest.mark.in_turn
@pytest.mark.skipif(not FULL.exists(), reason="only Linux has /dev/full")
def test_where_errors_go_may_be_full_or_closed(checkpoint: str) -> None:
    for call in wrong_calls(checkpoint):
        for streams, code in ((f"2>{FULL}", 1), (f">{FULL} 2>&1", 1), ("2>&-", 2)):
            done = run_in_shell(streams, *call)
            assert (done.returncode, done.stdout, done.stderr) == (code, "", ""), (call, streams)
    for streams in (f"2>{FULL}", "2>&-"):
        assert run_in_shell(streams, "checkpoint", "verify", checkpoint).returncode == 0


@pytest.mark.in_turn
def test_a_command_ends_in_silence_when_nobody_reads(checkpoint: str) -> None:
    for call in (*calls(checkpoint), *wrong_calls(checkpoint)):
        reading, writing = os.pipe()
        os.close(reading)
        of_errors = call in wrong_calls(checkpoint)
        done = subprocess.run(
            (*COMMAND, *call),
            stdout=subprocess.PIPE if of_errors else writing,
            stderr=writing if of_errors else subprocess.PIPE,
            check=False,
        )
        os.close(writing)
        assert (done.returncode, done.stdout or b"", done.stderr or b"") == (141, b"", b""), call


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "encoding",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "ascii:strict"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}],
    ids=str,
)
def test_what_an_encoding_lacks_is_escaped(encoding: dict[str, str], checkpoint: str) -> None:
    def run(*call: str) -> str:
        env = {**os.environ, "PYTHONCOERCECLOCALE": "0", **encoding}
        done = subprocess.run((*COMMAND, *call), capture_output=True, check=False, env=env)
        assert b"Traceback" not in done.stderr
        return (done.stdout + done.stderr).decode("ascii")

    lines = run("state", "read", checkpoint, *WORDS, "--format", "json").splitlines()
    assert "ä" in {json.loads(line)["map_key"] for line in lines}
    assert "\\u00e4" in run("state", "read", checkpoint, *WORDS)
    assert "####  74" in run("checkpoint", "inspect", checkpoint)
    error = run("state", "read", checkpoint, "--uid", "müller")  # the shell's bytes, if they are no text there
    assert "no state for uid 'm\\u00fcller'" in error or "no state for uid 'm\\udcc3\\udcbcller'" in error


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes that are started take an interrupt: a shell lets those in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, ExitStack() as connections:
        options = ("-o", f"s3Endpoint=http://127.0.0.1:{deaf.getsockname()[1]}", "-o", "s3Addressing=path")
        command = subprocess.Popen(
            (*COMMAND, "checkpoint", "list", "s3://bucket/checkpoint", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        )
        with command:
            connections.enter_context(deaf.accept()[0])
            command.send_signal(signal.SIGINT)
            out, err = command.communicate()
    assert (command.returncode, out, err) == (130, "", "pyspark-ckpt: interrupted\n")


IMPORT = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
runpy.run_module("pyspark_ckpt", run_name="__main__")
"""


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_told_in_one_line_while_modules_are_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "pyspark-ckpt: interrupted\n")


WORK = """
import sys
from pyspark_ckpt.state_store.redistribution.jobs import LocalProcesses
from tests.test_cli_streams import Sleep

try:
    LocalProcesses(2)([Sleep(sys.argv[1], number) for number in range(4)], lambda _done, _all: None)
except KeyboardInterrupt:
    sys.exit(130)
"""


class Sleep:
    """A task that says that it runs, and then takes long."""

    def __init__(self, folder: str, number: int) -> None:
        self.folder, self.key = folder, str(number)

    def __call__(self) -> None:
        Path(self.folder, self.key).touch()
        for _ in range(600):  # one long sleep would miss a signal that comes just before it
            time.sleep(0.1)


@pytest.mark.usefixtures("interruptible")
def test_worker_processes_end_in_silence_when_all_are_interrupted(tmp_path: Path) -> None:
    command = subprocess.Popen(
        (sys.executable, "-c", WORK, str(tmp_path)),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        start_new_session=True,
    )
    with command:
        while len(list(tmp_path.iterdir())) < 2:  # both are at work
            assert command.poll() is None
            time.sleep(0.01)
        os.killpg(command.pid, signal.SIGINT)  # as a terminal does
        _, err = command.communicate(timeout=30)
    assert (command.returncode, err) == (130, "")
    assert {each.name for each in tmp_path.iterdir()} == {"0", "1"}, "no other task was begun"


@pytest.mark.in_turn
def test_a_place_for_temporary_files_that_is_not_there_is_named(tmp_path: Path, checkpoint: str) -> None:
    written(tmp_path / "query", 2)
    savepoints.savepoint(tmp_path / "query", tmp_path / "whole")
    missing = tmp_path / "missing"
    for call in (
        ("checkpoint", "verify", checkpoint),
        ("checkpoint", "inspect", checkpoint, "--key-groups"),
        ("state", "read", checkpoint, *WORDS),
        ("state", "get", checkpoint, *WORDS, "--key", "3"),
        ("checkpoint", "rescale", str(tmp_path / "query"), str(tmp_path / "new"), "-n", "3"),
        ("savepoint", "create", str(tmp_path / "query"), str(tmp_path / "saved"), "--kind", "canonical"),
        ("savepoint", "create", str(tmp_path / "query"), str(tmp_path / "saved")),
        ("savepoint", "restore", str(tmp_path / "whole"), str(tmp_path / "new")),
    ):
        env = {**os.environ, "TMPDIR": str(missing)}
        done = subprocess.run((*COMMAND, *call), capture_output=True, text=True, check=False, env=env)
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            1,
            f"pyspark-ckpt: TMPDIR is {missing}, which is not a writable folder.",
        ), call
    assert not any(files(tmp_path / name) for name in ("new", "saved")), "it is found before anything is written"
