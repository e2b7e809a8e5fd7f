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


class History:
    """The rows of every history that was ever planned, by its chain."""

    def __init__(self, partitions: int) -> None:
        """Begin with no rows."""
        self.partitions = partitions
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

    def rows(self, chain: str, partition: int) -> Rows:
        """Return the rows of a partition after a history."""
        if chain == START:
            return {}
        mine = {
            key: value for key, value in self._rows[chain].items() if partition_of(key, self.partitions) == partition
        }
        return {**mine, chain_key(partition, self.partitions): chain}

    def all_rows(self, chain: str) -> Rows:
        """Return the rows of all partitions after a history."""
        return {key: value for n in range(self.partitions) for key, value in self.rows(chain, n).items()}

    def has(self, rows: Rows, partition: int) -> bool:
        """Return whether rows are those of a history that was planned."""
        chain = rows.get(chain_key(partition, self.partitions), START)
        return (chain == START or chain in self._rows) and rows == self.rows(chain, partition)


def changes(input_: int) -> dict[str, int | None]:
    """Return what a batch adds to each key; None deletes one."""
    draw = random.Random(f"input {input_}")
    keys = draw.sample(KEYS, draw.randint(0, 4))
    return {key: None if draw.random() < 0.25 else draw.randrange(1, 100) for key in keys}


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key."""
    return saved_query.partition_of(0, row_hash(key), partitions)


@cache
def chain_key(partition: int, partitions: int) -> str:
    """Return the key of the row that names the history of a store, so that its reader knows which rows it must have."""
    return next(key for n in count() if partition_of(key := f"chain {n}", partitions) == partition)
