"""Keeps files that were fetched to read some rows on the local disk, for the rows that are read next."""

from __future__ import annotations

import os
import shutil
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pyspark_ckpt.state_store.local.files import make_scratch_folder, take_open_files

MAX_BYTES = 1 << 30
"""How much is kept on disk."""
MAX_FOLDERS = 64
"""How many folders are kept. Each may have an open database."""

T = TypeVar("T")
Make = Callable[[Path], AbstractContextManager[T]]


class KeptFolders:
    """Temporary folders, private to the user, each with what was fetched for one key. For one caller at a time."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """Keep up to ``max_bytes``, and nothing if it is 0."""
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, _Folder] = OrderedDict()

    @contextmanager
    def use(self, key: Hashable, make: Make[T]) -> Iterator[T]:
        """Yield what ``make`` returns for a new folder, or what it has returned for an earlier call with this ``key``.

        After the block it is kept, and the folders that were used least recently are removed if there are too many.
        After an error it is removed. Raises StorageError (no folder can be made), and what ``make`` raises.
        """
        folder = self._kept.pop(key, None)
        if folder is not None and not folder.is_there:  # a cleaner of temporary files has removed it
            folder.remove()
            folder = None
        folder = folder or _Folder(make)
        try:
            yield folder.content
            folder.measure()
        except BaseException:
            folder.remove()
            raise
        self._keep(key, folder)

    def close(self) -> None:
        """Remove all folders. May be called twice."""
        while self._kept:
            self._kept.popitem()[1].remove()

    def _keep(self, key: Hashable, folder: _Folder) -> None:
        if key in self._kept:  # kept by a call within the block
            self._kept.pop(key).remove()
        self._kept[key] = folder
        total = sum(each.size_bytes for each in self._kept.values())
        while self._kept and (total > self._max_bytes or len(self._kept) > MAX_FOLDERS):
            oldest = self._kept.popitem(last=False)[1]
            total -= oldest.size_bytes
            oldest.remove()


class _Folder:
    """A folder and what was made of it. It is removed at the latest when the process ends."""

    def __init__(self, make: Make[Any]) -> None:
        take_open_files()
        self.size_bytes = 0
        self._path = make_scratch_folder()
        stack = ExitStack()
        stack.callback(shutil.rmtree, self._path, ignore_errors=True)
        self.remove = weakref.finalize(self, stack.close)
        try:
            self.content: Any = stack.enter_context(make(self._path))
        except BaseException:
            self.remove()
            raise

    @property
    def is_there(self) -> bool:
        """Whether the folder still exists."""
        return self._path.is_dir()

    def measure(self) -> None:
        """Note how many bytes the folder takes. A file with several links counts once."""
        found: dict[int, int] = {}
        for path, _, names in os.walk(self._path):
            for name in names:
                with suppress(FileNotFoundError):  # RocksDB has just removed it
                    state = Path(path, name).stat()
                    found[state.st_ino] = state.st_size
        self.size_bytes = sum(found.values())
