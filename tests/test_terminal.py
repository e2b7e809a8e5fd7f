"""The output of the command line on a terminal, and elsewhere."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.offline.descriptions.operators import type_text
from pyspark_ckpt.terminal import print_bars, print_table
from tests.compat.frozen import unpack

COLUMNS, NARROW = 80, 60
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("v1", "keyed", tmp_path_factory.mktemp("frozen") / "keyed")


def run_on_terminal(*arguments: str, also_stdout: bool, columns: int = COLUMNS) -> tuple[str, str]:
    """What the terminal showed, with stderr and perhaps stdout on it, and what went into a pipe."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark_ckpt", *arguments],
        stdin=theirs,
        stdout=theirs if also_stdout else subprocess.PIPE,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color"},
    ) as command:
        os.close(theirs)
        shown = bytearray()
        with suppress(OSError):  # Linux reports the end of a terminal so
            while portion := os.read(ours, 1 << 16):
                shown += portion
        piped = b"" if command.stdout is None else command.stdout.read()
    os.close(ours)
    assert command.returncode == 0, shown
    return shown.decode(), piped.decode()


def test_tables_fit_a_terminal_and_lose_nothing(checkpoint: Path) -> None:
    for command in (
        ("checkpoint", "list", str(checkpoint)),
        ("checkpoint", "inspect", str(checkpoint), "--lineage"),
        ("state", "read", str(checkpoint), "--uid", "kinds", "--state", "words"),
    ):
        shown, _ = run_on_terminal(*command, also_stdout=True)
        lines = ESCAPES.sub("", shown).splitlines()
        assert max(map(len, lines)) <= COLUMNS
        assert "…" not in shown


@pytest.mark.in_turn
@pytest.mark.parametrize("columns", [COLUMNS, NARROW])
def test_no_word_is_cut_on_a_narrow_terminal(columns: int, checkpoint: Path, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    assert main(["savepoint", "create", str(checkpoint), saved, "--digests"]) == 0
    for command in (
        ("checkpoint", "list", str(checkpoint)),
        ("checkpoint", "inspect", str(checkpoint), "--lineage", "--key-groups"),
        ("checkpoint", "gc", str(checkpoint), "--dry-run"),
        ("state", "read", str(checkpoint), "--uid", "kinds", "--state", "words"),
        ("savepoint", "inspect", saved),
        ("checkpoint", "rescale", str(checkpoint), str(tmp_path / "new"), "-n", "3", "--dry-run"),
    ):
        shown, _ = run_on_terminal(*command, also_stdout=True, columns=columns)
        piped = subprocess.run((sys.executable, "-m", "pyspark_ckpt", *command), capture_output=True, check=True)
        expected = {word for word in piped.stdout.decode().split() if len(word) <= columns and "█" not in word}
        lost = expected - set(ESCAPES.sub(" ", shown).split())
        assert lost <= {"expires_at"}, command  # a column without values is left out of records


def test_progress_goes_to_the_terminal_and_json_to_the_pipe(checkpoint: Path) -> None:
    shown, piped = run_on_terminal("checkpoint", "verify", str(checkpoint), "--json", also_stdout=False)
    assert re.search(r"\d/\d", ESCAPES.sub("", shown))
    assert [each["problems"] for each in json.loads(piped)["stores"]] == [[], []]


def test_a_pipe_gets_whole_lines_without_escape_codes_and_no_progress(checkpoint: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_ckpt", "checkpoint", "inspect", str(checkpoint), "--key-groups"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "40"},
    )
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) > COLUMNS
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_a_long_cell_is_one_line_of_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    cell = "[bold]" + "wide " * 10_000 + "end"
    print_table(("a", "count", "b"), [(cell, 1234567, "x"), ("short", 5, "y")])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["a", "count", "b"]
    assert first == f"{cell}  1,234,567  x"
    assert second.split() == ["short", "5", "y"]
    assert first.index("x") == second.index("y")


def test_values_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a",), [("red \x1b[31m\nü",)])
    assert capsys.readouterr().out.splitlines() == ["a", "red \\x1b[31m\\nü"]


def test_bars_show_counts_and_their_skew(capsys: pytest.CaptureFixture[str]) -> None:
    print_bars({"0": 3000, "10": 1000})
    first, second, skew = capsys.readouterr().out.splitlines()
    assert (first.split()[0], first.split()[-1], first.count("█")) == ("0", "3,000", 40)
    assert (second.split()[0], second.split()[-1], second.count("█")) == ("10", "1,000", 13)
    assert skew == "the largest has 1.50 times the mean"
    print_bars({"0": 0})
    assert capsys.readouterr().out.split() == ["0", "0"]


def test_a_nested_struct_keeps_its_brackets() -> None:
    def struct(**fields: object) -> dict[str, object]:
        return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}

    inner = {"type": "array", "elementType": struct(a="integer", b="string"), "containsNull": True}
    assert type_text(struct(user="long", visits=inner)) == "user bigint, visits array<struct<a int, b string>>"
    keyed = {"value": {"schemas": ["long", struct(a="long")], "current": 2}}
    assert type_text(keyed) == "value struct<a bigint>"


def test_misspelt_commands_and_options_are_answered_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for call, meant in (
        ("chekpoint", "checkpoint"),
        ("checkpoint inspct x", "inspect"),
        ("checkpoint rescale --paralelism 3", "--parallelism"),
    ):
        assert main(call.split()) == 2
        told = capsys.readouterr()
        assert "Did you mean" in told.err
        assert meant in told.err
        assert told.out == ""


@pytest.mark.parametrize(
    ("words", "expected"), [("pyspark-ckpt check", "checkpoint"), ("pyspark-ckpt state get --u", "--uid")]
)
def test_a_shell_completes_commands_and_options(words: str, expected: str) -> None:
    asked = {"_PYSPARK_CKPT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = Path(sys.executable).with_name("pyspark-ckpt")
    done = subprocess.run([program], capture_output=True, text=True, check=True, env={**os.environ, **asked})
    assert expected in done.stdout


def test_a_reader_that_stops_reading_ends_the_command_without_a_word(checkpoint: Path) -> None:
    call = ("state", "read", str(checkpoint), "--uid", "kinds", "--state", "words", "--format", "json")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_ckpt", *call], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
