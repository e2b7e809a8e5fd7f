"""Which files of a query are in a checkpoint, and which of them are whole.

A file that is empty or cut was written without being synced, before the machine lost its power. Others were damaged or
deleted by hand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.entries import check_content, decode_json, require_partitions
from pyspark_ckpt.state_store.checkpoints.query.files import BATCH, list_batches
from pyspark_ckpt.state_store.checkpoints.query.sources import parse_offsets
from pyspark_ckpt.state_store.checkpoints.query.spark_files import check_form, guess_file_offsets
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.names import RUNS_FOLDER, WATERMARKS_FOLDER, parse_epoch
from pyspark_ckpt.state_store.json_objects import MAX_LONG, unseal

THREADS = 8
LISTINGS = 5
"""How often the logs of a query that commits meanwhile are listed."""

_OFFSETS = "offsets/"
_GONE = "gone"
"""Of a file that the query has deleted since it was listed."""
_SOURCE = re.compile(r"sources/([A-Za-z0-9_]{1,255})/(.+)")
_LATER_METADATA = re.compile(r"(state/[0-9]{1,9}/_metadata/v2)/([0-9]{1,19})")
_STATE_FILE = re.compile(r"state/[0-9]+/(?:_metadata/.+|_stateSchema/.+|[0-9]+/(?:[^/]+/)?_metadata/.+)")
REWRITTEN_SCHEMA = re.compile(r"state/[0-9]+/[0-9]+/(?:[^/]+/)?_metadata/schema")
"""A schema that Spark compares with that of the program, and writes if it is not there."""


@dataclass(frozen=True)
class Entries:
    """The files of a query. ``problems``: what is wrong with those that are not whole, by name."""

    names: frozenset[str]
    offsets: Mapping[int, bytes]
    """The entries of the offset log that are whole, by batch."""
    problems: Mapping[str, str]

    def is_whole(self, name: str) -> bool:
        """Return whether a file is there and whole."""
        return name in self.names and name not in self.problems

    def list_numbers(self, folder: str) -> list[int]:
        """Return the numbers of the files in a folder, whole or not, in ascending order."""
        lead = f"{folder}/"
        tails = (name.removeprefix(lead) for name in self.names if name.startswith(lead))
        return sorted(number for tail in tails if BATCH.fullmatch(tail) and (number := int(tail)) < MAX_LONG)

    @cached_property
    def metadata_folders(self) -> set[str]:
        """The folders with a numbered description of an operator for each run of the query."""
        return {match[1] for name in self.names if (match := _LATER_METADATA.fullmatch(name))}

    @cached_property
    def source_files(self) -> list[str]:
        """All files of sources."""
        return sorted(name for name in self.names if _SOURCE.fullmatch(name))

    @cached_property
    def whole_source_files(self) -> list[str]:
        """The files of sources that are whole."""
        return [name for name in self.source_files if name not in self.problems]


def read_entries(place: BlobPlace) -> Entries:
    """List and read all files of a query, also while it runs. Raises StorageError."""
    names = _list_settled(place)
    offsets, problems = _read_offsets(place, [name for name in names if name.startswith(_OFFSETS)])
    file_sources = next(guess_file_offsets(offsets[max(offsets)] if offsets else b""), {})
    others = [name for name in names if not name.startswith(_OFFSETS)]
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda name: _find_problem(place, name, file_sources), others)
        problems |= {name: problem for name, problem in zip(others, found, strict=True) if problem}
    gone = {name for name, problem in problems.items() if problem == _GONE}
    return Entries(
        frozenset(names) - gone, offsets, {name: each for name, each in problems.items() if name not in gone}
    )


def _read_offsets(place: BlobPlace, names: list[str]) -> tuple[dict[int, bytes], dict[str, str]]:
    """Return the entries of the offset log that are whole, and what is wrong with the others."""
    problems: dict[str, str] = {}
    offsets: dict[int, bytes] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for name, content in zip(names, pool.map(lambda each: _read(place, each), names), strict=True):
            problem = _GONE if content is None else _find_damage(name, content, f"{place.url}/{name}", ())
            if content is not None and not problem:
                offsets[int(name.removeprefix(_OFFSETS))] = content
            elif problem:
                problems[name] = problem
    _find_cut_offsets(offsets, place.url, problems)
    return offsets, problems


def _list_settled(place: BlobPlace) -> list[str]:
    """Return the names of all files, as they are between two commits of a query that may run."""
    for _ in range(LISTINGS):
        committed = list_batches(place, "commits")
        found = [*_list_logs(place), *_list_others(place)]
        if list_batches(place, "commits") == committed:
            break
    return sorted(found)


def _list_logs(place: BlobPlace) -> Iterator[str]:
    for log in ("commits", "offsets", WATERMARKS_FOLDER):
        yield from (f"{log}/{batch}" for batch in list_batches(place, log))
    yield from (blob.name for blob in place.list(RUNS_FOLDER) if parse_epoch(blob.name) is not None)


def _list_others(place: BlobPlace) -> Iterator[str]:
    for folder in ("sources", "state"):
        for blob in place.walk(folder):
            if _SOURCE.fullmatch(blob.name) or _STATE_FILE.fullmatch(blob.name):
                yield blob.name


def _read(place: BlobPlace, name: str) -> bytes | None:
    """Return the content of a file; None if the query has deleted it since, or if it is a link to a folder."""
    try:
        return None if name.endswith("/") else place.get(name)
    except NotFoundError:
        return None


def _find_problem(place: BlobPlace, name: str, file_sources: Container[str]) -> str:
    content = _read(place, name)
    return _GONE if content is None else _find_damage(name, content, f"{place.url}/{name}", file_sources)


def _find_damage(name: str, content: bytes, where: str, file_sources: Container[str]) -> str:
    """Return what is wrong with a file; empty if it is whole. ``file_sources``: see ``check_form``."""
    if not content.strip(b"\0"):
        return f"{where} is empty."
    try:
        check_form(name, check_content(name, content, where), where, file_sources)
        if name.startswith(_OFFSETS):
            _check_offsets(content, where)
        elif name.startswith(f"{RUNS_FOLDER}/"):
            unseal(content, where)
        elif "/_metadata/" in name and not REWRITTEN_SCHEMA.fullmatch(name):
            decode_json(content.partition(b"\n")[2], where)
    except FormatError as problem:
        return problem.message
    return ""


def _check_offsets(content: bytes, where: str) -> None:
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


def _find_cut_offsets(offsets: dict[int, bytes], url: str, problems: dict[str, str]) -> None:
    """Take out entries of version 1, which has a line for each source, with another number of lines than most have."""
    lines = {batch: content.count(b"\n") for batch, content in offsets.items() if content.startswith(b"v1\n")}
    usual = max(Counter(lines.values()).items(), key=lambda each: (each[1], each[0]), default=(0, 0))[0]
    for batch in [batch for batch, count in lines.items() if count != usual]:
        name = f"offsets/{batch}"
        problems[name] = f"{url}/{name} is damaged: it has offsets of more or fewer sources than most entries."
        del offsets[batch]
