"""Tasks of offline work in processes of this machine: in order, with their errors, and when a process dies."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.jobs import CopyHere, LocalProcesses


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
    with pytest.raises(StorageError, match=r"ran square-0 has ended \(status 7\)"):
        LocalProcesses(1)([Square(0)], lambda _done, _of: None)


def test_copies_run_at_once_in_this_process_and_stop_at_the_first_error() -> None:
    told: list[tuple[int, int]] = []
    tasks = [Square(number) for number in range(1, 20)]
    assert CopyHere()(tasks, lambda done, of: told.append((done, of))) == [task() for task in tasks]
    assert told[-1] == (19, 19)
    with pytest.raises(FormatError, match="-1 is damaged"):
        CopyHere()([Square(1), Square(-1), Square(2)], lambda _done, _of: None)
