"""Names for the sources of a query that began without them, in its offset log and for the folders of their files."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.entries import decode_json, find_confs, split_lines
from pyspark_ckpt.state_store.checkpoints.query.files import SOURCES, log_names
from pyspark_ckpt.state_store.checkpoints.query.sources import (
    EVOLUTION_CONF,
    MAX_NAME_LENGTH,
    NAME,
    NUMBER,
    Offsets,
    Source,
    describe_sources,
    is_of_files,
    parse_offsets,
)
from pyspark_ckpt.state_store.checkpoints.query.spark_files import find_lost_source_files, read_file_offsets
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError


class SourceNames:
    """The new names of the sources of one query."""

    def __init__(self, checkpoint: BlobPlace, batch: int, names: Sequence[str]) -> None:
        """``names``: in the order of the offset log, for a query that will continue after ``batch``.

        Raises InvalidInputError (they cannot be the names of its sources), NotFoundError, FormatError, StorageError.
        """
        self._url, self._names = checkpoint.url, tuple(names)
        _check_names(self._names)
        files = list(log_names(checkpoint, batch))
        logs = {name: checkpoint.get(name) for name in files if name.startswith("offsets/")}
        entries = {name: parse_offsets(content, f"{self._url}/{name}") for name, content in logs.items()}
        newest = max(entries, key=lambda name: (len(name), name))
        self._refuse_named(entries[newest])
        fullest = max(entries, key=lambda name: (len(entries[name].by_id), name == newest))
        if len(entries[fullest].by_id) != len(names):
            self._refuse_number(checkpoint, fullest, entries[fullest])
        sources = [name for name in files if name.startswith(f"{SOURCES}/")]
        strange = find_misplaced_source(checkpoint, sources, logs[newest], entries[newest])
        if strange is not None:
            self._refuse_folder(*strange, newest)
        self._refuse_taken(_list_folders(sources))

    def rename_file(self, name: str) -> str:
        """Return the new name of a file of the query."""
        room, _, rest = name.partition("/")
        source, slash, file = rest.partition("/")
        if room != SOURCES or not slash or not self._is_renamed(source):
            return name
        return f"{SOURCES}/{self._names[int(source)]}/{file}"

    def name_offsets(self, content: bytes, where: str) -> bytes:
        """Return an entry of the offset log with the offsets by names. Raises FormatError that names ``where``."""
        offsets = parse_offsets(content, where)
        count = len(offsets.by_id)
        if offsets.are_named or count > len(self._names) or (offsets.has_all and count < len(self._names)):
            raise FormatError(f"{where} has other sources than the entries of the neighbouring batches.")
        entry = decode_json(split_lines(content, where)[1], where)
        find_confs(entry, where)[EVOLUTION_CONF] = "true"
        entry.setdefault("sourceMetadataInfo", {})
        lines = [f"{name}:{offset}".encode() for name, offset in offsets.rename(self._names).by_id.items()]
        return b"\n".join([b"v2", msgspec.json.encode(entry), *lines])

    def _is_renamed(self, folder: str) -> bool:
        return NUMBER.fullmatch(folder) is not None and int(folder) < len(self._names)

    def _refuse_named(self, offsets: Offsets) -> None:
        if offsets.are_named:
            raise InvalidInputError(
                f"`source_names` is {list(self._names)}, but the sources of {self._url} already have names: "
                f"{list(offsets.by_id)}.",
                hint="Restore it without `source_names`.",
            )

    def _refuse_number(self, checkpoint: BlobPlace, name: str, offsets: Offsets) -> None:
        """Raise InvalidInputError that lists the sources."""
        listed = [f"({number}) {each}" for number, each in enumerate(describe_sources(checkpoint, offsets))]
        raise InvalidInputError(
            f"`source_names` has {count_text(len(self._names), 'name')}, but {self._url}/{name} has "
            f"{count_text(len(listed), 'source')}: {'; '.join(listed)}.",
            hint="Name each of them, in this order.",
        )

    def _refuse_folder(self, number: int, source: Source, newest: str) -> None:
        raise InvalidInputError(
            f"The files of source ({number}) in {self._url}/{newest}, {source}, are not in {SOURCES}/{number}.",
            hint="The query uses one frame twice, as in a union with itself, or files were lost. If a frame is used "
            "twice, its sources cannot get names: their numbers differ from their lines, and Spark wants another name "
            "for each use.",
        )

    def _refuse_taken(self, folders: set[str]) -> None:
        """Raise InvalidInputError if a source would find another source's files."""
        taken = sorted(each for each in folders if each in self._names and not self._is_renamed(each))
        if taken:
            raise InvalidInputError(
                f"`source_names` has {taken[0]!r}, but {self._url}/{SOURCES}/{taken[0]} has files of another source.",
                hint="Choose another name.",
            )


def find_misplaced_source(
    checkpoint: BlobPlace, files: Sequence[str], newest: bytes, offsets: Offsets
) -> tuple[int, Source] | None:
    """Return a source whose files may be in the folder of another number, as for a frame that is used twice.

    ``files``: the names of all sources' files. ``newest``: an entry of the offset log, with the ``offsets``. Raises
    NotFoundError, FormatError, StorageError.
    """
    lost = find_lost_source_files(read_file_offsets(newest), files)
    described = describe_sources(checkpoint, offsets)
    strange = _find_strange(described, lost, _list_folders(files))
    return None if strange is None else (strange, described[strange])


def _find_strange(sources: Sequence[Source], lost: Sequence[str], folders: set[str]) -> int | None:
    """Return a source whose files may be in the folder of another number; None if there is none.

    A frame that is used twice has two lines and one folder, so all later folders have lower numbers than their lines.
    The last line of a file source then always lacks its files. A source of another kind may have no folder; for these,
    two equal offsets are looked for before a line without a folder.
    """
    without = {name.split("/")[1] for name in lost}
    for number, source in enumerate(sources):
        if str(number) in without or (is_of_files(source) and source.file is None):
            return number
    seen: dict[str, bool] = {}
    may_repeat = False
    for number, source in enumerate(sources):
        if source.offset is None or is_of_files(source):
            continue
        has_folder = str(number) in folders
        may_repeat = may_repeat or (source.offset in seen and (has_folder or seen[source.offset]))
        if may_repeat and not has_folder:
            return number
        seen[source.offset] = seen.get(source.offset, False) or has_folder
    return None


def _list_folders(files: Sequence[str]) -> set[str]:
    return {name.split("/")[1] for name in files}


def _check_names(names: Sequence[str]) -> None:
    """Raise InvalidInputError for names that Spark would refuse."""
    for name in names:
        given: object = name  # from Python, which does not check types
        if not isinstance(given, str) or NAME.fullmatch(given) is None:
            raise InvalidInputError(
                f"`source_names` has {name!r}, which cannot be the name of a source.",
                hint=f"A name has 1 to {MAX_NAME_LENGTH} ASCII letters, digits and underscores, as in "
                "spark.readStream.name(...).",
            )
        if names.count(name) > 1:
            raise InvalidInputError(
                f"`source_names` has {name!r} {names.count(name)} times.", hint="Give each source its own name."
            )
