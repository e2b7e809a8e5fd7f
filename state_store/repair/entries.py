"""Find a query's files in a checkpoint, and which of them are whole.

A file that is empty or cut off was not synced before the machine lost its power. Others were damaged or deleted by
hand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.carried_plans import CARRIED_FILE, NONE_CARRIED, read_last_carried
from pyspark_ckpt.state_store.checkpoints.query.content import check_content
from pyspark_ckpt.state_store.checkpoints.query.entries import decode_json
from pyspark_ckpt.state_store.checkpoints.query.files import BATCH, find_last_carried, list_batches
from pyspark_ckpt.state_store.checkpoints.query.misplaced import find_misplaced
from pyspark_ckpt.state_store.checkpoints.query.sources import require_offsets
from pyspark_ckpt.state_store.checkpoints.query.spark_files import check_form, guess_file_offsets
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.names import REPLAY_FOLDER, RUNS_FOLDER, WATERMARKS_FOLDER, parse_epoch
from pyspark_ckpt.state_store.json_objects import MAX_LONG, unseal

THREADS = 8
LISTINGS = 5
"""How often the logs are listed if the query commits meanwhile."""

_OFFSETS, _CARRIED = "offsets/", f"{REPLAY_FOLDER}/"
_PLANS = (_OFFSETS, _CARRIED)
_GONE = "gone"
"""For a file that the query has deleted after it was listed."""
_SOURCE = re.compile(r"sources/([A-Za-z0-9_]{1,255})/(.+)")
_LATER_METADATA = re.compile(r"(state/[0-9]{1,9}/_metadata/v2)/([0-9]{1,19})")
_STATE_FILE = re.compile(r"state/[0-9]+/(?:_metadata/.+|_stateSchema/.+|[0-9]+/(?:[^/]+/)?_metadata/.+)")
REWRITTEN_SCHEMA = re.compile(r"state/[0-9]+/[0-9]+/(?:[^/]+/)?_metadata/schema")
"""A schema that Spark compares with the program's, and writes if it is missing."""


@dataclass(frozen=True)
class Entries:
    """The files of a query. ``problems``: the faults of those that are not whole, by name."""

    names: frozenset[str]
    offsets: Mapping[int, bytes]
    """The entries of the offset log that are whole, by batch."""
    problems: Mapping[str, str]
    carried: Mapping[int, bytes] = field(default_factory=dict)
    """The plans that a restore has carried over and that are whole, by batch."""
    last_carried: int = NONE_CARRIED
    """The last batch whose plan a restore has carried over, as far as recorded."""

    def find_plan(self, batch: int) -> bytes:
        """Return the whole plan of a batch, from Spark's log or carried over; empty if there is none."""
        return self.offsets.get(batch) or self.carried.get(batch, b"")

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
    offsets, carried, problems = _read_plans(place, [name for name in names if name.startswith(_PLANS)])
    file_sources = next(guess_file_offsets(offsets[max(offsets)] if offsets else b""), {})
    others = [name for name in names if not name.startswith(_PLANS)]
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda name: _find_problem(place, name, file_sources), others)
        problems |= {name: problem for name, problem in zip(others, found, strict=True) if problem}
    gone = {name for name, problem in problems.items() if problem == _GONE}
    return Entries(
        frozenset(names) - gone,
        offsets,
        {name: each for name, each in problems.items() if name not in gone},
        carried,
        NONE_CARRIED if CARRIED_FILE in problems else read_last_carried(place),
    )


def _read_plans(place: BlobPlace, names: list[str]) -> tuple[dict[int, bytes], dict[int, bytes], dict[str, str]]:
    """Return the whole entries of the offset log and of the carried plans, and the faults of the others."""
    problems: dict[str, str] = {}
    whole: dict[str, bytes] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for name, content in zip(names, pool.map(lambda each: _read(place, each), names), strict=True):
            problem = _GONE if content is None else _find_damage(name, content, f"{place.url}/{name}", ())
            if content is not None and not problem:
                whole[name] = content
            elif problem:
                problems[name] = problem
    _find_cut_offsets(whole, place.url, problems)
    for name, why in find_misplaced(_order(whole)).items():
        problems[name] = f"{place.url}/{name} {why}."
        del whole[name]
    return _number(whole, _OFFSETS), _number(whole, _CARRIED), problems


def _order(entries: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the plan of each batch, in order; if it is there twice, the one in Spark's log counts."""
    names = {batch: f"{_CARRIED}{batch}" for batch in _number(entries, _CARRIED)}
    names |= {batch: f"{_OFFSETS}{batch}" for batch in _number(entries, _OFFSETS)}
    return {name: entries[name] for _, name in sorted(names.items())}


def _number(entries: Mapping[str, bytes], lead: str) -> dict[int, bytes]:
    return {int(name.removeprefix(lead)): content for name, content in entries.items() if name.startswith(lead)}


def _list_settled(place: BlobPlace) -> list[str]:
    """Return the names of all files, as they are between two commits of a query that may run."""
    for _ in range(LISTINGS):
        committed = list_batches(place, "commits")
        found = [*_list_logs(place), *_list_others(place)]
        if list_batches(place, "commits") == committed:
            break
    return sorted(found)


def _list_logs(place: BlobPlace) -> Iterator[str]:
    for log in (REPLAY_FOLDER, "commits", "offsets", WATERMARKS_FOLDER):  # a query logs a carried plan, then deletes it
        yield from (f"{log}/{batch}" for batch in list_batches(place, log))
    yield from find_last_carried(place)
    yield from (blob.name for blob in place.list(RUNS_FOLDER) if parse_epoch(blob.name) is not None)


def _list_others(place: BlobPlace) -> Iterator[str]:
    for folder in ("sources", "state"):
        for blob in place.walk(folder):
            if _SOURCE.fullmatch(blob.name) or _STATE_FILE.fullmatch(blob.name):
                yield blob.name


def _read(place: BlobPlace, name: str) -> bytes | None:
    """Return the content of a file; None if the query has since deleted it, or if it is a link to a folder."""
    try:
        return None if name.endswith("/") else place.get(name)
    except NotFoundError:
        return None


def _find_problem(place: BlobPlace, name: str, file_sources: Container[str]) -> str:
    content = _read(place, name)
    return _GONE if content is None else _find_damage(name, content, f"{place.url}/{name}", file_sources)


def _find_damage(name: str, content: bytes, where: str, file_sources: Container[str]) -> str:
    """Return the fault of a file; empty if it is whole. ``file_sources``: see ``check_form``."""
    if not content.strip(b"\0"):
        return f"{where} is empty."
    try:
        check_form(name, check_content(name, content, where), where, file_sources)
        if name.startswith(_PLANS):
            require_offsets(content, where)
        elif name.startswith(f"{RUNS_FOLDER}/"):
            unseal(content, where)
        elif "/_metadata/" in name and not REWRITTEN_SCHEMA.fullmatch(name):
            decode_json(content.partition(b"\n")[2], where)
    except FormatError as problem:
        return problem.message
    return ""


def _find_cut_offsets(entries: dict[str, bytes], url: str, problems: dict[str, str]) -> None:
    """Take out entries of version 1, which has a line for each source, if their number of lines differs from most."""
    lines = {name: content.count(b"\n") for name, content in entries.items() if content.startswith(b"v1\n")}
    usual = max(Counter(lines.values()).items(), key=lambda each: (each[1], each[0]), default=(0, 0))[0]
    for name in [name for name, count in lines.items() if count != usual]:
        problems[name] = f"{url}/{name} is damaged: it has offsets of more or fewer sources than most entries."
        del entries[name]
