"""The sources of a query in its offset log.

An entry of the offset log has a line for each source, after the version and the JSON::

    v1    <offset>, in the order of the sources in the query; ``-`` if there is none yet
    v2    <id>:<offset>, in any order, and no line if there is none yet

The id is the name that the program gives to the source if the conf EVOLUTION_CONF is true, else its number. A source
keeps its files in ``sources/<id>``. In v1 its id is the number of its line, except after a frame that the query uses
twice: that frame has two lines and is one source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from pyspark_ckpt.state_store.attempts.damaged_logs import naming_repair
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.entries import decode_json, find_confs, require_partitions, split_lines
from pyspark_ckpt.state_store.checkpoints.query.files import SOURCES
from pyspark_ckpt.state_store.checkpoints.query.spark_files import choose_source_files, read_file_offset
from pyspark_ckpt.state_store.errors import FormatError

EVOLUTION_CONF = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
MAX_NAME_LENGTH = 255
"""No folder of a file system has a longer name."""
NAME = re.compile(rf"[A-Za-z0-9_]{{1,{MAX_NAME_LENGTH}}}")
NUMBER = re.compile(r"0|[1-9][0-9]{0,4}")
MAX_SHOWN = 120
_VOID = "-"


@dataclass(frozen=True)
class Offsets:
    """The offsets in one entry of the log, by the ids of sources; None for a source that has none yet.

    ``has_all``: whether sources without an offset also have a line.
    """

    are_named: bool
    has_all: bool
    by_id: Mapping[str, str | None]

    def rename(self, names: Sequence[str]) -> Offsets:
        """Return the same offsets with the ``names`` as ids, in order."""
        renamed = zip(names, self.by_id.values(), strict=False)
        return Offsets(are_named=True, has_all=False, by_id={name: each for name, each in renamed if each is not None})


@dataclass(frozen=True)
class Source:
    """A source of a query. ``name``: None if it has none. ``offset``: as Spark has logged it, or None.

    ``file``: one that a file source has read, so that a user recognises the source; None for other sources.
    """

    name: str | None
    offset: str | None
    file: str | None

    def __str__(self) -> str:
        offset = "no offset yet" if self.offset is None else self.offset
        shown = offset if len(offset) <= MAX_SHOWN else f"{offset[:MAX_SHOWN]}..."
        return shown if self.file is None else f"{shown}, has read {self.file}"


def parse_offsets(content: bytes, where: str) -> Offsets:
    """Return the offsets in an entry of the offset log. Raises FormatError that names ``where``."""
    version, entry, *rest = split_lines(content, where)
    try:
        lines = [line.decode() for line in rest]
    except UnicodeDecodeError as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem
    are_named = False
    if version == b"v1":
        pairs = [(str(number), line) for number, line in enumerate(lines)]
    elif version == b"v2":
        pairs = [(each, line) for each, colon, line in (line.partition(":") for line in lines) if colon]
        are_named = find_confs(decode_json(entry, where), where).get(EVOLUTION_CONF) == "true"
    else:
        raise FormatError(f"{where} has the version {version.decode()}, whose form of sources is not known.")
    found = {each: None if line == _VOID else line for each, line in pairs}
    has_ids = are_named or all(map(NUMBER.fullmatch, found))
    if "" in found.values() or len(found) < len(lines) or not has_ids:
        raise FormatError(f"{where} is damaged: it has no offset for a source, or two.")
    if are_named:
        return Offsets(are_named=True, has_all=False, by_id=dict(sorted(found.items())))
    numbers = map(str, range(max(map(int, found), default=-1) + 1))
    return Offsets(are_named=False, has_all=version == b"v1", by_id={each: found.get(each) for each in numbers})


def require_offsets(content: bytes, where: str) -> None:
    """Raise FormatError that names ``where`` unless an entry of the offset log may be whole, with a source's offset."""
    require_partitions(content, where)
    offsets = parse_offsets(content, where).by_id
    if not offsets:
        raise FormatError(f"{where} is damaged: it has no offset.")
    for offset in offsets.values():
        if offset is not None and offset.startswith(("{", "[")):
            try:
                msgspec.json.decode(offset)
            except (msgspec.DecodeError, RecursionError) as problem:
                raise FormatError(f"{where} is damaged: {problem}.") from problem


def list_sources(checkpoint: BlobPlace, batch: int) -> list[Source]:
    """Return the sources of ``batch`` in the order of the offset log; named ones in the order of their names.

    Raises NotFoundError (the offsets of the batch are gone), FormatError, StorageError.
    """
    name = f"offsets/{batch}"
    with naming_repair(checkpoint):
        offsets = parse_offsets(checkpoint.get(name), f"{checkpoint.url}/{name}")
    return describe_sources(checkpoint, offsets)


def describe_sources(checkpoint: BlobPlace, offsets: Offsets) -> list[Source]:
    """Return the sources in an entry of the offset log. Raises NotFoundError, StorageError."""
    return list(_describe(checkpoint, offsets))


def _describe(checkpoint: BlobPlace, offsets: Offsets) -> Iterator[Source]:
    for each, offset in offsets.by_id.items():
        source = Source(each if offsets.are_named else None, offset, None)
        if is_of_files(source) and NAME.fullmatch(each):
            source = replace(source, file=_find_read_file(checkpoint, each))
        yield source


def is_of_files(source: Source) -> bool:
    """Return whether this is Spark's file source, by the form of its offset."""
    return source.offset is not None and read_file_offset(source.offset) is not None


def _find_read_file(checkpoint: BlobPlace, source: str) -> str | None:
    """Return a file that a file source has read, if its newest log names one. Logs of many batches are long."""
    names = [blob.name for blob in checkpoint.walk(f"{SOURCES}/{source}") if not blob.name.endswith("/")]
    logs = sorted(choose_source_files(names), key=lambda name: (not name.endswith(".compact"), len(name), name))
    for line in reversed(checkpoint.get(logs[-1]).split(b"\n")) if logs else ():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(line, type=_ReadFile).path
    return None


class _ReadFile(msgspec.Struct):
    path: str
