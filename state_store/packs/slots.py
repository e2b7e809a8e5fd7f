"""Commits inside packs: where they are, and how the id that Spark keeps says so.

A pack is one object with the deltas of several stores of a query, see ``packs``::

    <id>                                       a commit with a delta of its own, or from before there were packs
    <id>-<pack>.<first byte>.<size>            a commit in the pack <version>-<pack>.pack; numbers are hexadecimal

Everything but Spark's logs, and the chains in deltas, knows a commit by its version and the plain ``<id>``. Releases
that know no packs refuse an id with ``-``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER

PACKS_FOLDER = f"{CHECKPOINT_FOLDER}/packs"
"""The folder of packs, in the checkpoint or in the query's folder below ``remote``."""
PACK_ID_DIGITS = 16

_LOCATED = re.compile(r"([A-Za-z0-9_.]{1,64})-([0-9a-f]{16})\.(0|[1-9a-f][0-9a-f]{0,8})\.([1-9a-f][0-9a-f]{0,8})")
_PACK = re.compile(r"([0-9]{20})-([0-9a-f]{16})\.pack")


class Slot(NamedTuple):
    """Where in a pack a commit is: its bytes ``start`` to ``start + size_bytes``."""

    pack: str
    start: int
    size_bytes: int


def pack_name(version: int, pack: str) -> str:
    """Return the name of a pack of commits of ``version``, in the folder of packs."""
    return f"{version:020d}-{pack}.pack"


def parse_pack(name: str) -> tuple[int, str] | None:
    """Return version and id of a pack by its name; None for a foreign name."""
    match = _PACK.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])


def locate(commit_id: str, slot: Slot | None) -> str:
    """Return the id that Spark keeps of a commit: with its place in a pack, if it is in one."""
    return commit_id if slot is None else f"{commit_id}-{slot.pack}.{slot.start:x}.{slot.size_bytes:x}"


def split_id(located: str) -> tuple[str, Slot | None]:
    """Return the plain id of a commit, and its place in a pack if it is in one."""
    match = _LOCATED.fullmatch(located)
    return (located, None) if match is None else (match[1], Slot(match[2], int(match[3], 16), int(match[4], 16)))
