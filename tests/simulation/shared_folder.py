"""A shared file system: its steps fail or take long, its disk is full for a while, and its power may be lost.

The engine uses a real folder, in memory, by its own code for file systems. What a loss of power leaves is what POSIX
promises: the content of a file after ``fsync`` of it, and the names in a folder after ``fsync`` of the folder. Anything
else may be there or not: a new name, a deletion, a rename, and content as a part or as zeros.

============  ==================  ==================================================
fault         told                what happens
============  ==================  ==================================================
fails         EIO                 nothing
fails_after   ESTALE              it happens
slow          the answer          it happens, and takes up to ``SLOW_S``
full          ENOSPC              nothing more is written
unsynced      EIO, from fsync     it happens, but is not durable
============  ==================  ==================================================
"""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pyspark_ckpt.state_store.blobs.base.file_writes import is_temporary
from pyspark_ckpt.state_store.blobs.local import place as places
from pyspark_ckpt.state_store.blobs.local import uploads
from pyspark_ckpt.state_store.blobs.local.files import may_pass, write_all
from tests.simulation.flipped_bits import flip_bit
from tests.simulation.replacing import replaced
from tests.simulation.scheduler import START_S, Scheduler
from tests.simulation.weather import CALM, SLOW_S

FAULTS = ("fails", "fails_after", "slow", "full", "unsynced")
STORMS = ("fails", "fails_after", "full", "unsynced")
"""The faults that may meet most steps for a while."""
FOLDER = -1
"""What stands under the name of a folder; files are numbered."""
BLOCK_BYTES = 4096

T = TypeVar("T")


@dataclass(frozen=True)
class Content:
    """The durable content of a file, and its time."""

    data: bytes
    modified_s: float


class Direct(places.LocalPlace):
    """A folder past any fault."""

    def ask(self, request: Callable[[], T]) -> T:
        """Return the result of a step."""
        return request()


class SharedFolder:
    """The file system, whose clock is right. ``root``: where it is mounted on all machines."""

    def __init__(self, scheduler: Scheduler, seed: object, root: Path) -> None:
        """Begin without files."""
        self.scheduler = scheduler
        self.weather = CALM
        self.met: Counter[str] = Counter()
        """How many steps each fault has met."""
        self.draw = random.Random(f"folder {seed}")
        self.on_change: Callable[[str, str], None] = lambda _verb, _path: None
        """Called after a file has appeared or was deleted, with what was done and its path."""
        self._root = root
        root.mkdir(parents=True)
        self._numbers: dict[int, int] = {}
        """The file that each inode is now."""
        self._made = 0
        self._durable: dict[int, Content] = {}
        self._names: dict[Path, dict[str, int]] = {root: {}}
        """The durable names of each folder."""

    @property
    def now_s(self) -> float:
        """The time of the file system."""
        return START_S + self.scheduler.now_s

    # --- past any fault -----------------------------------------------------------------------------------------------

    def place(self, url: str) -> Direct:
        """Return the files below a folder, past any fault."""
        return Direct(Path(url))

    def read(self, key: str) -> bytes:
        """Return the content of a file."""
        return Path(key).read_bytes()

    def find(self, key: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        return self.read(key) if Path(key).exists() else None

    def delete(self, key: str) -> None:
        """Delete a file for good."""
        path = Path(key)
        path.unlink()
        self._names.get(path.parent, {}).pop(path.name, None)
        self.on_change("delete", key)

    def damage(self, key: str, draw: random.Random) -> None:
        """Change a bit of a file."""
        path = Path(key)
        state, content = path.stat(), flip_bit(path.read_bytes(), draw)
        path.write_bytes(content)
        os.utime(path, (state.st_mtime,) * 2)
        self._durable[self._number_of(state)] = Content(content, state.st_mtime)

    def unfinished(self, url: str) -> list[str]:
        """Return the temporary files of the engine in a checkpoint. Those of Spark's files are Spark's."""
        folders = [Path(url) / name for name in ("state", "_ckpt")]
        found = [path for folder in folders for path in sorted(folder.rglob("*")) if is_temporary(path.name)]
        return [str(path) for path in found if path.parent.name != "_metadata"]

    # --- what the engine does -----------------------------------------------------------------------------------------

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Let the engine's code for file systems meet this one."""
        place, upload = places.LocalPlace, uploads.LocalUpload
        with ExitStack() as stack:
            for owner, name, act in (
                (place, "ask", self._ask),
                (place, "now_s", lambda _place: self.now_s),
                (place, "delete", partial(self._delete, place.delete)),
                (upload, "_begin", partial(self._begin, upload._begin)),
                (upload, "_sync", partial(self._sync, upload._sync)),
                (upload, "_name", partial(self._name, upload._name)),
                (uploads, "write_all", self._write_all),
                (uploads, "sync_file", self._sync_file),
                (places, "sync_folder", self._sync_folder),
            ):
                stack.enter_context(replaced(owner, name, _as_function(act)))
            yield

    def _ask(self, place: places.LocalPlace, request: Callable[[], T]) -> T:
        return place.retries.repeat(place.url, lambda: self._step(request), may_pass)

    def _step(self, request: Callable[[], T]) -> T:
        latency_s = self.weather.latency_s
        self.scheduler.current.process.note_request()
        self.scheduler.sleep(self.draw.uniform(0, latency_s))
        if self._meets("fails"):
            _fail(errno.EIO)
        if self._meets("slow"):
            self.scheduler.sleep(self.draw.uniform(0, SLOW_S))
        result = request()
        self.scheduler.sleep(self.draw.uniform(0, latency_s))
        if self._meets("fails_after"):
            _fail(errno.ESTALE)
        return result

    def _meets(self, fault: str) -> bool:
        weather = self.weather
        if fault not in weather.kinds or self.draw.random() * len(weather.kinds) >= weather.chance:
            return False
        self.met[f"fault: {fault}"] += 1
        return True

    def _delete(self, delete: Callable[[places.LocalPlace, str], None], place: places.LocalPlace, name: str) -> None:
        self._require_writer()
        path = place.path_of(name)
        was_there = path.exists()
        delete(place, name)
        if was_there:
            self.on_change("delete", str(path))

    def _require_writer(self) -> None:
        if self.scheduler.current.process.only_reads:
            _fail(errno.EACCES)

    def _begin(self, begin: Callable[[Any], Any], upload: Any) -> Any:  # noqa: ANN401 - a private method
        self._require_writer()
        if self._meets("full"):
            _fail(errno.ENOSPC)
        file = begin(upload)
        self._number_of(os.fstat(file.fileno()), is_new=True)
        os.utime(file.fileno(), (self.now_s,) * 2)
        return file

    def _write_all(self, file: io.FileIO, data: bytes | memoryview) -> None:
        self.scheduler.pass_by()
        if self._meets("full"):
            write_all(file, data[: len(data) // 2])
            _fail(errno.ENOSPC)
        write_all(file, data)
        os.utime(file.fileno(), (self.now_s,) * 2)

    def _sync_file(self, _descriptor: int) -> None:
        self.scheduler.pass_by()
        if self._meets("unsynced"):
            _fail(errno.EIO)

    def _sync(self, sync: Callable[[Any], None], upload: Any) -> None:  # noqa: ANN401
        sync(upload)
        path: Path = upload._temporary
        self._durable[self._number_of(path.stat())] = Content(path.read_bytes(), self.now_s)
        self.scheduler.pass_by()

    def _name(self, name: Callable[..., bool], upload: Any, *, replace: bool) -> bool:  # noqa: ANN401
        is_named = name(upload, replace=replace)
        if is_named:
            self.on_change("put", str(upload._path))
        self.scheduler.pass_by()
        return is_named

    def _sync_folder(self, folder: Path) -> None:
        self.scheduler.pass_by()
        if self._meets("unsynced"):
            _fail(errno.EIO)
        self._names[folder] = self._list(folder)

    def _number_of(self, state: os.stat_result, *, is_new: bool = False) -> int:
        if is_new or state.st_ino not in self._numbers:
            self._made += 1
            self._numbers[state.st_ino] = self._made
        return self._numbers[state.st_ino]

    def _list(self, folder: Path) -> dict[str, int]:
        if not folder.is_dir():
            return {}
        with os.scandir(folder) as entries:
            return {each.name: FOLDER if each.is_dir() else self._number_of(each.stat()) for each in entries}

    # --- loss of power ------------------------------------------------------------------------------------------------

    def lose_power(self, draw: random.Random) -> None:
        """Leave what is durable, and of everything else as much as happens to be there."""
        self._lose(self._root, draw.choice((0.0, 0.3, 1.0)), draw)

    def _lose(self, folder: Path, kept: float, draw: random.Random) -> None:
        """``kept``: how probable it is that a change of a name is there although it was not made durable."""
        durable, now = self._names.get(folder, {}), self._list(folder)
        for name in sorted({*durable, *now}):
            path, before, after = folder / name, durable.get(name), now.get(name)
            left = after if before == after or draw.random() < kept else before
            if left == FOLDER:
                path.mkdir(exist_ok=True)
                self._lose(path, kept, draw)
            elif left is None:
                shutil.rmtree(path) if after == FOLDER else path.unlink(missing_ok=True)
                self._names.pop(path, None)
            else:
                self._leave(path, left, draw)
        self._names[folder] = self._list(folder)

    def _leave(self, path: Path, number: int, draw: random.Random) -> None:
        content = self._durable.get(number)
        if content is None:  # it was being written
            data = path.read_bytes() if path.exists() else b""
            torn = data[: int(draw.random() * (len(data) + 1))]
            content = Content(torn.ljust(min(len(data), -(-len(torn) // BLOCK_BYTES) * BLOCK_BYTES), b"\0"), self.now_s)
            self._durable[number] = content
        path.unlink(missing_ok=True)
        path.write_bytes(content.data)
        os.utime(path, (content.modified_s,) * 2)
        self._numbers[path.stat().st_ino] = number


def _as_function(act: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function: as an attribute of a class, it gets the object."""

    def function(*given: Any, **named: Any) -> Any:  # noqa: ANN401
        return act(*given, **named)

    return function


def _fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))
