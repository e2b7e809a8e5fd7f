"""What must be true: the rows of each version, as dictionaries, and what the commit log of a query says."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count

from tests.labs import saved_query
from tests.labs.lab import Rows, row_hash

KEYS = [f"k{number}" for number in range(8)]
START = "start"
MOST_PARTITIONS = 4
CHAIN = "chain "


@dataclass(frozen=True)
class Batch:
    """An entry of the offset log: the input of a batch, and the history that it makes."""

    number: int
    input: int
    chain: str

    def encode(self, partitions: int) -> bytes:
        """Return the entry as Spark would write it: a version, confs, and the offset of the only source."""
        confs = {"spark.sql.shuffle.partitions": str(partitions)}
        entry = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": confs}
        offset = {"input": self.input, "chain": self.chain}
        return f"v1\n{json.dumps(entry)}\n{json.dumps(offset)}".encode()

    @classmethod
    def decode(cls, number: int, content: bytes) -> Batch:
        """Read an entry."""
        body = json.loads(content.split(b"\n")[2])
        return cls(number, body["input"], body["chain"])


@dataclass(frozen=True)
class Query:
    """A query: its checkpoint and partitions; and the version that a restore has put there, made with others."""

    checkpoint: str
    partitions: int
    restored: int = 0
    restored_from: int = 0

    def made_with(self, version: int) -> int:
        """Return how many partitions the query had when it made a version."""
        return self.restored_from if version == self.restored else self.partitions


class History:
    """The rows of every history that was ever planned, by its chain."""

    def __init__(self) -> None:
        """Begin with no rows."""
        self._rows: dict[str, Mapping[str, str]] = {START: {}}

    def plan(self, number: int, before: str, input_: int) -> Batch:
        """Plan a batch after the history ``before``."""
        chain = hashlib.sha256(f"{before} {input_}".encode()).hexdigest()[:12]
        if chain not in self._rows:
            rows = dict(self._rows[before])
            for key, value in changes(input_).items():
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = f"{int(rows.get(key, '0')) + value}"
            self._rows[chain] = rows
        return Batch(number, input_, chain)

    def rows(self, chain: str, partition: int, partitions: int, made_with: int) -> Rows:
        """Return the rows of a partition, one of so many, after a history: as it was made, or as a restore moved it."""
        rows = self.all_rows(chain, made_with)
        return {key: value for key, value in rows.items() if partition_of(key, partitions) == partition}

    def all_rows(self, chain: str, made_with: int) -> Rows:
        """Return the rows of all partitions after a history."""
        named = {} if chain == START else {chain_key(each, made_with): chain for each in range(made_with)}
        return {**self._rows[chain], **named}

    def has(self, rows: Rows, partition: int, partitions: int) -> bool:
        """Return whether rows are those of a history that was planned."""
        made = range(1, MOST_PARTITIONS + 1)
        return any(rows == self.rows(chain, partition, partitions, each) for chain in self._rows for each in made)


def changes(input_: int) -> dict[str, int | None]:
    """Return what a batch adds to each key; None deletes one."""
    draw = random.Random(f"input {input_}")
    keys = draw.sample(KEYS, draw.randint(0, 4))
    return {key: None if draw.random() < 0.25 else draw.randrange(1, 100) for key in keys}


@cache
def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key."""
    return saved_query.partition_of(0, row_hash(key), partitions)


@cache
def chain_key(partition: int, partitions: int) -> str:
    """Return the key of the row that names the history of a store, so that its reader knows which rows it must have."""
    return next(key for n in count() if partition_of(key := f"{CHAIN}{n}", partitions) == partition)
