"""Which key becomes which in a ReKey, over all states of its operator: two keys must not become one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.types.type_names import arrow_type_named
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from typing_extensions import Self

FORMER_KEY = "former_key"
"""The column by which a row is known to have had another key."""
FORMER_TYPE = pa.binary(16)
PARTS = 64
"""How many parts pairs are checked in, to bound the memory, unless a job gives a number."""
_SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field(FORMER_KEY, FORMER_TYPE)])


@dataclass(frozen=True)
class KeyChange:
    """A new key of an operator, for all of its states. ``schema``: its columns with their types. ``id``: its own."""

    uid: str
    schema: Mapping[str, str]
    id: str


def describe_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the column FORMER_KEY of rows with these columns of their key."""
    encoded = KeyCodec([column.type for column in columns]).encode_columns(columns)
    return pa.array([_digest(key) for key in encoded], FORMER_TYPE)


class KeyPairs:
    """The pairs of one change of a key that one process has seen, in files on the local disk."""

    def __init__(self, change: KeyChange, folder: Path, parts: int) -> None:
        """``folder``: an empty one. ``parts``: all pairs of a key are in the file of one of so many parts."""
        self.change = change
        self._codec, self._parts, self._folder = _make_codec(change), parts, folder
        self._files = ExitStack()
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self.paths: dict[int, Path] = {}
        """The files by part. They are complete when this is closed."""

    def add(self, columns: Sequence[pa.Array], former: pa.Array) -> None:
        """Add the keys of rows, and those that they had. Raises InvalidInputError if two of these became one."""
        keys = self._codec.encode_columns(columns)
        pairs: dict[bytes, bytes] = {}
        for key, old in zip(keys, former.to_pylist(), strict=True):
            if pairs.setdefault(key, old) != old:
                refuse(self.change, key)
        parts: dict[int, list[tuple[bytes, bytes]]] = {}
        for pair in pairs.items():
            parts.setdefault(int.from_bytes(_digest(pair[0])[:8], "big") % self._parts, []).append(pair)
        for part, some in parts.items():
            self._open(part).write_batch(
                pa.record_batch([pa.array(each) for each in zip(*some, strict=True)], schema=_SCHEMA)
            )

    def _open(self, part: int) -> pa.ipc.RecordBatchStreamWriter:
        if part not in self._writers:
            self.paths[part] = self._folder / f"{part}"
            self._writers[part] = self._files.enter_context(pa.ipc.new_stream(f"{self.paths[part]}", _SCHEMA))
        return self._writers[part]

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def require_distinct(change: KeyChange, paths: Iterable[Path]) -> None:
    """Raise InvalidInputError if two keys became one, by all files of a part."""
    tables = []
    for path in paths:
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            tables.append(stream.read_all())
    counts = pa.concat_tables(tables).group_by("key").aggregate([(FORMER_KEY, "count_distinct")])
    merged = counts.filter(pc.greater(counts[f"{FORMER_KEY}_count_distinct"], 1))
    if len(merged):
        refuse(change, merged["key"][0].as_py())


def refuse(change: KeyChange, key: bytes) -> NoReturn:
    """Raise InvalidInputError: two keys became this one."""
    shown = dict(zip(change.schema, _make_codec(change).decode(key), strict=True))
    raise InvalidInputError(
        f"ReKey of {change.uid!r}: two keys become one, {repr(shown)[:200]}.",
        hint="Give each a key of its own. Or read their rows by open_state, merge them, and Put them.",
    )


class AllKeyPairs:
    """The pairs of all changes of keys of a store that one process has seen."""

    def __init__(self, folder: Path, parts: int) -> None:
        """``folder``: where they are kept. ``parts``: see KeyPairs."""
        self._folder, self._parts = folder, parts
        self._found: dict[str, KeyPairs] = {}

    @classmethod
    @contextmanager
    def below(cls, folder: Path, parts: int = PARTS) -> Iterator[Self]:
        """Keep pairs below a folder."""
        pairs = cls(folder, parts)
        try:
            yield pairs
        finally:
            pairs.close()

    @property
    def found(self) -> Sequence[KeyPairs]:
        """The pairs of each change."""
        return list(self._found.values())

    def close(self) -> None:
        """Complete the files."""
        for each in self.found:
            each.close()

    def require_distinct(self) -> None:
        """Raise InvalidInputError if two keys became one, of those that were seen here. Nothing can be added then."""
        self.close()
        for each in self.found:
            for path in each.paths.values():
                require_distinct(each.change, [path])

    def of(self, change: KeyChange) -> KeyPairs:
        """Return the pairs of a change."""
        if change.id not in self._found:
            folder = self._folder / f"keys-{len(self._found)}"
            folder.mkdir(mode=0o700)
            self._found[change.id] = KeyPairs(change, folder, self._parts)
        return self._found[change.id]


def _make_codec(change: KeyChange) -> KeyCodec:
    return KeyCodec([arrow_type_named(kind) for kind in change.schema.values()])


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=FORMER_TYPE.byte_width).digest()
