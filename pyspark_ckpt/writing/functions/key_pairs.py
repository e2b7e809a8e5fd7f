"""Which keys a ReKey makes of which, in all states of its operator: two keys must not become one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
_PARTS = 64
"""The pairs are looked through in so many parts, which bounds the memory."""
_SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field(FORMER_KEY, FORMER_TYPE)])


@dataclass(frozen=True, eq=False)
class KeyChange:
    """A new key of an operator; one object for all of its states. ``schema``: its columns with their types."""

    uid: str
    schema: Mapping[str, str]


def describe_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the column FORMER_KEY of rows with these columns of their key."""
    encoded = KeyCodec([column.type for column in columns]).encode_columns(columns)
    return pa.array([_digest(key) for key in encoded], FORMER_TYPE)


class KeyPairs:
    """The pairs of one change of a key, on the local disk."""

    def __init__(self, change: KeyChange, folder: Path) -> None:
        """``folder``: an empty one."""
        self._uid = change.uid
        self._codec = KeyCodec([arrow_type_named(kind) for kind in change.schema.values()])
        self._names = list(change.schema)
        self._files = ExitStack()
        self._writers = [
            self._files.enter_context(pa.ipc.new_stream(f"{folder / str(part)}", _SCHEMA)) for part in range(_PARTS)
        ]
        self._paths = [folder / str(part) for part in range(_PARTS)]

    def add(self, columns: Sequence[pa.Array], former: pa.Array) -> None:
        """Add the keys of rows, and those that they had. Raises InvalidInputError if two of these became one."""
        keys = self._codec.encode_columns(columns)
        pairs: dict[bytes, bytes] = {}
        for key, old in zip(keys, former.to_pylist(), strict=True):
            if pairs.setdefault(key, old) != old:
                self._refuse(key)
        parts: dict[int, list[tuple[bytes, bytes]]] = {}
        for pair in pairs.items():
            parts.setdefault(_digest(pair[0])[0] % _PARTS, []).append(pair)
        for part, some in parts.items():
            self._writers[part].write_batch(
                pa.record_batch([pa.array(each) for each in zip(*some, strict=True)], schema=_SCHEMA)
            )

    def require_distinct(self) -> None:
        """Raise InvalidInputError if two keys became one. Nothing can be added afterwards."""
        self.close()
        for path in self._paths:
            with pa.ipc.open_stream(path.read_bytes()) as stream:
                pairs = stream.read_all()
            path.unlink()
            counts = pairs.group_by("key").aggregate([(FORMER_KEY, "count_distinct")])
            merged = counts.filter(pc.greater(counts[f"{FORMER_KEY}_count_distinct"], 1))
            if len(merged):
                self._refuse(merged["key"][0].as_py())

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _refuse(self, key: bytes) -> None:
        shown = dict(zip(self._names, self._codec.decode(key), strict=True))
        raise InvalidInputError(
            f"ReKey of {self._uid!r}: two keys become one, {repr(shown)[:200]}.",
            hint="Give each a key of its own. Or read their rows by open_state, put them together, and Put them.",
        )


class AllKeyPairs:
    """The pairs of all changes of keys of a store."""

    def __init__(self, folder: Path) -> None:
        """``folder``: where they are kept."""
        self._folder = folder
        self._found: dict[KeyChange, KeyPairs] = {}

    @classmethod
    @contextmanager
    def below(cls, folder: Path) -> Iterator[Self]:
        """Keep pairs below a folder, and look through them at the end. Raises InvalidInputError (two keys are one)."""
        pairs = cls(folder)
        try:
            yield pairs
            for each in pairs._found.values():
                each.require_distinct()
        finally:
            for each in pairs._found.values():
                each.close()

    def of(self, change: KeyChange) -> KeyPairs:
        """Return the pairs of a change."""
        if change not in self._found:
            folder = self._folder / f"keys-{len(self._found)}"
            folder.mkdir(mode=0o700)
            self._found[change] = KeyPairs(change, folder)
        return self._found[change]


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=FORMER_TYPE.byte_width).digest()
