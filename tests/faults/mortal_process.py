"""A process that is killed at one of its writes into a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse

Step: TypeAlias = tuple[str, str]
"""A kind of write, and the name of its object."""


class KilledError(BaseException):
    """The end of a process, which nothing in it handles."""


class Mortal:
    """Kills at a write below one folder: before it happens, or after. What is dead writes no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Look at the writes of all local places."""
        self.folder, self.left, self.is_after, self.is_dead = Path(), -1, False, False
        self.step: Step | None = None
        self._inside = threading.local()
        for name in ("create", "put", "put_if_absent", "delete"):
            monkeypatch.setattr(LocalPlace, name, self._deadly(getattr(LocalPlace, name)))

    def kill_at(self, folder: Path, write: int | Step, *, is_after: bool) -> None:
        """Kill at this write below ``folder``, by its number from 0 on, or what it is; never if it is negative."""
        self.folder, self.is_after, self.is_dead = folder, is_after, False
        self.left, self.step = (write, None) if isinstance(write, int) else (-1, write)

    def _deadly(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def write(place: LocalPlace, name: str, *rest: Any) -> Any:  # noqa: ANN401
            if getattr(self._inside, "is_inside", False) or not Path(place.url, name).is_relative_to(self.folder):
                return method(place, name, *rest)
            self._inside.is_inside = True
            try:
                is_last = self._is_last((method.__name__, name))
                if is_last and not self.is_after:
                    raise KilledError
                result = method(place, name, *rest)
            finally:
                self._inside.is_inside = False
            if is_last and method.__name__ != "create":
                raise KilledError(name)
            return result

        return write

    def _is_last(self, step: Step) -> bool:
        if self.is_dead:
            raise KilledError
        self.left -= 1
        self.is_dead = self.left == -1 or step == self.step
        return self.is_dead


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> Mortal:
    return Mortal(monkeypatch)


def left_behind(folder: Path) -> list[Path]:
    """What a restore needs as long as it is not through."""
    return [path for path in folder.glob("_ckpt/restore/**/*") if path.is_file()]


def files_in(folder: Path) -> list[Path]:
    """All files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def is_checkpoint(folder: Path) -> bool:
    try:
        Checkpoint(str(folder), parse({}))
    except InvalidInputError:
        return False
    return True


def survives(mortal: Mortal, target: Path, write: int | Step, *, is_after: bool, act: Callable[[], Any]) -> bool:
    """Whether ``act`` came to its end."""
    mortal.kill_at(target, write, is_after=is_after)
    try:
        act()
    except KilledError:
        return False
    finally:
        mortal.kill_at(target, -1, is_after=False)
    return True
