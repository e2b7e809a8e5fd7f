"""Threads that run one at a time and hand over where they say so: every interleaving follows from a seed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence


class Turns:
    """Whose turn it is among some tasks."""

    def __init__(self, draw: random.Random, at_change: Callable[[], object]) -> None:
        """Let ``draw`` decide who is next; ``at_change`` happens when it is another one."""
        self._draw = draw
        self._at_change = at_change
        self._waiting: dict[int, threading.Semaphore] = {}
        self._failures: list[BaseException] = []

    def take(self, tasks: Sequence[Callable[[], object]]) -> None:
        """Run all tasks to their ends, each in a thread of its own. Raises what the first of them to fail raised."""
        threads = []
        for number, task in enumerate(tasks):
            self._waiting[number] = threading.Semaphore(0)
            threads.append(threading.Thread(target=self._run, args=(number, task), name=str(number)))
        for thread in threads:
            thread.start()
        self._wake()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def hand_over(self) -> None:
        """Let another task go on, perhaps; returns when it is this one's turn again."""
        me = int(threading.current_thread().name)
        chosen = self._draw.choice(sorted(self._waiting))
        if chosen != me:
            self._at_change()
            self._waiting[chosen].release()
            self._waiting[me].acquire()

    def _run(self, number: int, task: Callable[[], object]) -> None:
        self._waiting[number].acquire()
        try:
            task()
        except BaseException as problem:  # noqa: BLE001 - it is raised where the tasks were started
            self._failures.append(problem)
        finally:
            del self._waiting[number]
            self._wake()

    def _wake(self) -> None:
        if self._waiting:
            self._waiting[self._draw.choice(sorted(self._waiting))].release()
