"""The sources of a composed query: their offsets, and the folders of their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark_ckpt.offline.composing.parts import Part
from pyspark_ckpt.offline.writing.first_files import NO_OFFSET, write_offset
from pyspark_ckpt.offline.writing.held_state import HeldState
from pyspark_ckpt.state_store.checkpoints.query.files import SOURCES, source_file_names
from pyspark_ckpt.state_store.checkpoints.query.source_names import find_misplaced_source
from pyspark_ckpt.state_store.checkpoints.query.sources import Offsets, parse_offsets
from pyspark_ckpt.state_store.errors import InvalidInputError

INFO = "sourceMetadataInfo"
"""The field of an offset log that says of sources with names what they are."""
GivenSource: TypeAlias = "Part | Mapping[str, Any] | str | None"


@dataclass(frozen=True)
class PlacedSource:
    """A source in the new log: its id there, its offset, and where its files are, by the id that it had there."""

    id: str
    offset: str
    held: HeldState | None
    former_id: str


@dataclass(frozen=True)
class PlacedSources:
    """All sources of the new log. ``info``: what a log of named sources says of them.

    ``are_kept``: whether they are exactly those of one query.
    """

    are_named: bool
    sources: Sequence[PlacedSource]
    info: Mapping[str, Any]
    are_kept: bool = False

    def write_lines(self, log_version: bytes) -> list[bytes]:
        """Return the lines of the offset log after its JSON, in a version of the log: ``v1`` or ``v2``."""
        if log_version == b"v1":
            return [each.offset.encode() for each in self.sources]
        return [f"{each.id}:{each.offset}".encode() for each in self.sources if each.offset != NO_OFFSET]


def place_sources(given: Sequence[GivenSource], held: Mapping[str, HeldState]) -> PlacedSources:
    """Return the sources in the order of the program. ``held``: by location.

    Raises InvalidInputError (a source that is not there, or has no folder of its own), FormatError, StorageError.
    """
    logs = {location: _read_offsets(state) for location, state in held.items()}
    (base, *_), used = logs, [each for each in given if isinstance(each, Part)]
    are_named = logs[base][0].are_named
    others = [each for each in used if logs[each.location][0].are_named != are_named]
    if others or (are_named and len(used) < len(given)):
        having = "names" if are_named else "no names"
        raise InvalidInputError(
            f"The sources of {base} have {having}, unlike others in `sources`.",
            hint="Give names to all: ckpt.restore(..., source_names=[...]) makes a checkpoint with names.",
        )
    sources: list[PlacedSource] = []
    info: dict[str, Any] = {}
    for number, each in enumerate(given):
        if not isinstance(each, Part):
            sources.append(PlacedSource(str(number), write_offset(each), None, ""))
            continue
        (offsets, described), state = logs[each.location], held[each.location]
        former = _find_source(each, offsets, state)
        _require_own_folder(state, offsets)
        offset = offsets.by_id[former]
        new_id = former if offsets.are_named else str(number)
        if any(other.id == new_id for other in sources):
            raise InvalidInputError(f"`sources` has the source {new_id!r} twice.", hint="Names must differ.")
        sources.append(PlacedSource(new_id, NO_OFFSET if offset is None else offset, state, former))
        if former in described:
            info[new_id] = described[former]
    return PlacedSources(are_named, sources, info)


def keep_sources(state: HeldState) -> PlacedSources:
    """Return all sources as they are, also those that share a folder. Raises FormatError."""
    offsets, info = _read_offsets(state)
    sources = [
        PlacedSource(each, NO_OFFSET if offset is None else offset, state, each)
        for each, offset in offsets.by_id.items()
    ]
    return PlacedSources(offsets.are_named, sources, info, are_kept=True)


def _read_offsets(state: HeldState) -> tuple[Offsets, Mapping[str, Any]]:
    offsets, info = parse_offsets(*state.find_entry("offsets")), state.decode_entry("offsets").get(INFO)
    return offsets, info if isinstance(info, dict) else {}


def _find_source(part: Part, offsets: Offsets, state: HeldState) -> str:
    wanted = str(part.name)
    if wanted not in offsets.by_id or isinstance(part.name, str) is not offsets.are_named:
        kind = "names" if offsets.are_named else "numbers"
        raise InvalidInputError(
            f"{state.source.place.url} has no source {part.name!r}. Its sources have the {kind} {list(offsets.by_id)}.",
            hint="`pyspark-ckpt savepoint inspect` lists the sources of a savepoint.",
        )
    return wanted


def _require_own_folder(state: HeldState, offsets: Offsets) -> None:
    """Raise InvalidInputError if the folder of a source's files is unknown."""
    if offsets.are_named:
        return
    place, (newest, _) = state.source.place, state.find_entry("offsets")
    strange = find_misplaced_source(place, list(source_file_names(place)), newest, offsets)
    if strange is not None:
        raise InvalidInputError(
            f"The files of source ({strange[0]}) of {place.url}, {strange[1]}, are not in {SOURCES}/{strange[0]}.",
            hint="The query uses one frame twice, or files were lost. Its sources cannot go to another query.",
        )
