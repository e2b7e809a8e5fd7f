"""The states in which a loss of power may leave a folder, by what file systems promise.

What is promised (POSIX, with what ext4, XFS and Btrfs add): data of a file are durable after ``fsync`` of it; the
entries of a folder (new names, removed ones, renames) after ``fsync`` of the folder; a rename happens as a whole or
not at all. Anything else may or may not have happened: entries that are later than others may be durable without
these, and a file may be there without its data, or with a part of them. What is done after a point is never there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from integration.power.recording import Operation, UnknownCallError


class Found(NamedTuple):
    """What is under a name: a file's content, or None for a folder. ``changed``: the number of its last change."""

    content: bytes | None
    changed: int


Tree = dict[str, Found]
"""What is below a folder, by path."""


@dataclass(eq=False)
class Inode:
    """A file, or a folder if it has ``entries``. ``synced``: the content that is durable."""

    data: bytes = b""
    synced: bytes = b""
    entries: dict[str, Inode] | None = None
    durable: dict[str, Inode] = field(default_factory=dict)
    """The entries of a folder that are durable."""
    changed: int = 0


@dataclass(frozen=True, eq=False)
class Change:
    """A change of entries that belongs together: in each folder, a name and what it stands for now; None: nothing."""

    entries: tuple[tuple[Inode, str, Inode | None], ...]


class Disk:
    """A folder as a program sees it, and what of it is durable."""

    def __init__(self, folder: Path, *, is_empty: bool = False) -> None:
        """Begin with what the folder has now, all of it durable, or with nothing."""
        self._top = str(folder)
        self.root = Inode(entries={}) if is_empty else _load(folder)
        self._count = 0
        self.pending: list[Change] = []
        """What was done to entries and is not durable yet, in order."""

    def apply(self, operation: Operation) -> None:
        """Do what a program did. Raises UnknownCallError."""
        path, other = operation.path, operation.other
        self._count += 1
        if operation.kind == "write":
            self._write(path, operation.data, operation.at)
        elif operation.kind == "copy":
            self._copy(operation)
        elif operation.kind == "truncate":
            self._truncate(path, operation.at or 0)
        elif operation.kind == "sync":
            self._sync(path)
        else:
            self._change(*self._find_changes(operation.kind, path, other))

    def _find_changes(self, kind: str, path: str, other: str) -> list[tuple[str, Inode | None]]:
        """Return the names that a call changes, and what they stand for afterwards."""
        if kind == "create":
            return [] if self._find(path) is not None else [(path, Inode(changed=self._count))]
        if kind == "folder":
            return [(path, Inode(entries={}))]
        if kind == "link":
            return [(other, self._get(path))]
        if kind == "rename":
            return [(path, None), (other, self._get(path))]
        if kind == "remove":
            return [(path, None)]
        raise UnknownCallError(f"{kind} of {path}")

    def _truncate(self, path: str, size: int) -> None:
        if (inode := self._find(path)) is not None:
            inode.data = inode.data[:size]

    def _write(self, path: str, data: bytes, at: int | None) -> None:
        inode = self._find(path)
        if inode is not None and inode.entries is None:
            begin = len(inode.data) if at is None else at
            inode.data = inode.data[:begin].ljust(begin, b"\0") + data + inode.data[begin + len(data) :]
            inode.changed = self._count

    def _copy(self, operation: Operation) -> None:
        source, target = self._find(operation.other), self._find(operation.path)
        if target is None:
            return
        if source is None:
            raise UnknownCallError(f"{operation.path} is copied from {operation.other}, which is not recorded")
        begin = len(target.data)
        target.data += source.data[begin : begin + (operation.at or 0)]
        target.changed = self._count

    def _sync(self, path: str) -> None:
        inode = self._find(path)
        if inode is None:
            return
        if inode.entries is None:
            inode.synced = inode.data
            return
        left = []
        for change in self.pending:  # a rename between two folders becomes durable with either
            if any(folder is inode for folder, _, _ in change.entries):
                _make_durable(change)
            else:
                left.append(change)
        self.pending = left

    def _change(self, *named: tuple[str, Inode | None]) -> None:
        entries = []
        for path, inode in named:
            folder = self._find(path.rpartition("/")[0])
            if folder is None or folder.entries is None:  # outside of the folder that is followed
                continue
            name = path.rpartition("/")[2]
            if inode is None:
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = inode
            entries.append((folder, name, inode))
        if entries:
            self.pending.append(Change(tuple(entries)))

    def _find(self, path: str) -> Inode | None:
        if path == self._top:
            return self.root
        if not path.startswith(f"{self._top}/"):
            return None
        inode: Inode | None = self.root
        for name in path[len(self._top) + 1 :].split("/"):
            inode = None if inode is None or inode.entries is None else inode.entries.get(name)
        return inode

    def _get(self, path: str) -> Inode:
        inode = self._find(path)
        if inode is None:
            raise UnknownCallError(f"{path} comes from outside of the recorded folders")
        return inode

    def states(self) -> Iterator[Tree]:
        """Yield what a loss of power may leave now, the likely ones first. Equal ones may come twice."""
        pending = self.pending
        folders = list({id(folder): folder for change in pending for folder, _, _ in change.entries}.values())
        chosen: list[list[Change]] = [[], pending]
        for folder in folders:
            mine = [change for change in pending if any(each is folder for each, _, _ in change.entries)]
            chosen += [mine, [change for change in pending if change not in mine]]
        chosen += [pending[:count] for count in range(1, len(pending))]
        chosen += [[change] for change in pending]
        for changes in chosen:
            for kept in (0.0, 0.5, 1.0):
                yield self._tree(changes, kept)

    def _tree(self, changes: Iterable[Change], kept: float) -> Tree:
        """Return the durable state with some changes. ``kept``: how much of what is not synced a file has."""
        over: dict[int, dict[str, Inode | None]] = {}
        for change in changes:
            for folder, name, inode in change.entries:
                over.setdefault(id(folder), {})[name] = inode
        tree: Tree = {}

        def add(folder: Inode, below: str) -> None:
            for name, inode in {**folder.durable, **over.get(id(folder), {})}.items():
                if inode is None:
                    continue
                if inode.entries is not None:
                    tree[below + name] = Found(None, 0)
                    add(inode, f"{below}{name}/")
                else:
                    tree[below + name] = Found(_content(inode, kept), inode.changed)

        add(self.root, "")
        return tree


def _content(inode: Inode, kept: float) -> bytes:
    if inode.data == inode.synced:
        return inode.data
    if inode.data.startswith(inode.synced):
        return inode.synced + inode.data[len(inode.synced) :][: int(kept * (len(inode.data) - len(inode.synced)))]
    return inode.data[: int(kept * len(inode.data))]


def _make_durable(change: Change) -> None:
    for folder, name, inode in change.entries:
        if inode is None:
            folder.durable.pop(name, None)
        else:
            folder.durable[name] = inode


def _load(path: Path) -> Inode:
    if path.is_dir():
        entries = {each.name: _load(each) for each in path.iterdir()}
        return Inode(entries=dict(entries), durable=dict(entries))
    content = path.read_bytes()
    return Inode(content, content)


def digest(tree: Tree) -> bytes:
    """Return what tells a state from others."""
    hashed = hashlib.blake2b()
    for name, (content, _) in sorted(tree.items()):
        hashed.update(f"{name}\0{content is None}\0{len(content or b'')}\0".encode(errors="surrogateescape"))
        hashed.update(content or b"")
    return hashed.digest()


def write(tree: Tree, folder: Path) -> None:
    """Make a folder that has this state. Files have been changed one after another, as they were."""
    folder.mkdir(parents=True)
    began_s = time.time() - len(tree) - max((found.changed for found in tree.values()), default=0)
    for name, (content, changed) in sorted(tree.items()):
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
            os.utime(folder / name, (began_s + changed,) * 2)
