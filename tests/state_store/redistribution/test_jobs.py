"""Tasks of offline work in processes of this machine: in order, with their errors, and when a process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pyspark_ckpt.state_store.errors import FormatError, ProcessError
from pyspark_ckpt.state_store.redistribution.jobs import CopyHere, LocalProcesses


@dataclass(frozen=True)
class Square:
    """Squares a number; a negative one is damaged, and zero ends the process."""

    number: int

    @property
    def key(self) -> str:
        return f"square-{self.number}"

    def __call__(self) -> int:
        if self.number < 0:
            raise FormatError(f"{self.number} is damaged.", hint="Take another.")
        if self.number == 0:
            os._exit(7)
        return self.number**2


def test_results_are_in_the_order_of_the_tasks_when_several_processes_work() -> None:
    told: list[tuple[int, int]] = []
    tasks = [Square(number) for number in range(1, 20)]
    assert LocalProcesses(2)(tasks, lambda done, of: told.append((done, of))) == [task() for task in tasks]
    assert told[0] == (0, 19)
    assert max(told) == (19, 19)
    assert LocalProcesses(2)([], lambda _done, _of: None) == []


def test_an_error_is_raised_as_it_was_when_a_task_fails_in_another_process() -> None:
    with pytest.raises(FormatError, match="-1 is damaged") as failed:
        LocalProcesses(2)([Square(1), Square(-1)], lambda _done, _of: None)
    assert failed.value.hint == "Take another."


def test_a_process_that_dies_is_named_with_its_task() -> None:
    with pytest.raises(ProcessError, match=r"ran square-0 has ended \(status 7\)") as caught:
        LocalProcesses(1)([Square(0)], lambda _done, _of: None)
    assert caught.value.retryable
    assert "run the same command again" in caught.value.hint


@dataclass(frozen=True)
class Forsake:
    """Dies, and leaves a process that it has forked, as a pool of processes in a function does."""

    pids: Path

    @property
    def key(self) -> str:
        return "forsake"

    def __call__(self) -> None:
        forked = os.fork()
        if not forked:
            time.sleep(60)
            os._exit(0)
        self.pids.write_text(f"{forked}")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_noticed_although_one_that_it_has_forked_lives(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"ran forsake has ended \(status -9\)"):
        LocalProcesses(1)([Forsake(tmp_path / "pid")], lambda _done, _of: None)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it is still there


def test_copies_run_at_once_in_this_process_and_stop_at_the_first_error() -> None:
    told: list[tuple[int, int]] = []
    tasks = [Square(number) for number in range(1, 20)]
    assert CopyHere()(tasks, lambda done, of: told.append((done, of))) == [task() for task in tasks]
    assert told[-1] == (19, 19)
    with pytest.raises(FormatError, match="-1 is damaged"):
        CopyHere()([Square(1), Square(-1), Square(2)], lambda _done, _of: None)


def test_processes_are_started_in_a_folder_whose_files_have_names_of_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "queue", "types", "subprocess", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a file of the user')")
    monkeypatch.chdir(tmp_path)
    assert LocalProcesses(1)([Square(3)], lambda _done, _of: None) == [9]


class Slow:
    """Is slow to be freed. Python swallows exceptions there, that of an exit, too."""

    def __init__(self, begun: Path) -> None:
        self.begun = begun

    def __del__(self) -> None:
        self.begun.touch()
        time.sleep(600)


@dataclass(frozen=True)
class Wait:
    """Waits in a temporary folder that it has made."""

    parent: Path
    frees: bool = False
    swallows: bool = False

    @property
    def key(self) -> str:
        return "wait"

    def __call__(self) -> None:
        with TemporaryDirectory(dir=self.parent) as made:
            if self.frees:
                Slow(Path(made) / "begun")
            (Path(made) / "begun").touch()
            while self.swallows:
                with suppress(BaseException):  # as an `except:` of a user
                    time.sleep(600)
            time.sleep(600)


@pytest.mark.in_turn
def test_an_interrupt_ends_the_processes_in_the_middle_of_a_task(tmp_path: Path) -> None:
    """A notebook sends it to its own process alone."""
    with _start(tmp_path) as starter:
        _wait_until_begun(tmp_path, starter)
        starter.send_signal(signal.SIGINT)
        assert starter.communicate(timeout=60)[0] == b""
        assert starter.returncode == -signal.SIGINT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.in_turn
def test_a_task_that_swallows_the_exit_does_not_go_on_for_ever(tmp_path: Path) -> None:
    with _start(tmp_path, swallows=True) as starter:
        _wait_until_begun(tmp_path, starter)
        starter.kill()
        assert starter.communicate(timeout=60)[0] == b""


def _start(folder: Path, *, frees: bool = False, swallows: bool = False) -> subprocess.Popen[bytes]:
    """Start a program that waits for a task in another process. Both have its stdout."""
    program = (
        f"import signal, sys; sys.path[:] = {sys.path}; from pathlib import Path; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell's background job ignores it
        "from tests.state_store.redistribution.test_jobs import *; "
        f"LocalProcesses(1)([Wait(Path({str(folder)!r}), {frees}, {swallows})], lambda _done, _of: None)"
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _wait_until_begun(folder: Path, starter: subprocess.Popen[bytes]) -> None:
    while not list(folder.glob("*/begun")):
        assert starter.poll() is None
        time.sleep(0.02)


@pytest.mark.parametrize("frees", [False, True])
def test_a_process_ends_and_cleans_up_in_the_middle_of_a_task_when_the_one_that_started_it_is_killed(
    *, frees: bool, tmp_path: Path
) -> None:
    with _start(tmp_path, frees=frees) as starter:
        _wait_until_begun(tmp_path, starter)
        starter.kill()
        assert starter.communicate(timeout=30)[0] == b""  # the end of all that have its stdout
    assert list(tmp_path.iterdir()) == []
