"""What the applications read, and what they must have shown and kept in the end."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdfs_native import WriteOptions

from pyspark_ckpt.reading import open_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.services.hdfs_service import HdfsService

USER = "ada"
"""Who submits applications: not the user that the node managers run as."""
QUERIES = ("keyed", "native")
USERS = 9
ROWS = 40

Totals = dict[str, tuple[int, int]]
"""By user: how many rows, and the sum of their amounts."""


@dataclass(frozen=True)
class Input:
    """Files of rows, in a folder of an HDFS: each is a batch of every query."""

    hdfs: HdfsService
    folder: str
    files: Sequence[Sequence[tuple[str, int]]]

    @property
    def path(self) -> str:
        """The folder in the default file system."""
        return self.hdfs.path(self.folder)

    def put(self, first: int) -> None:
        """Write the files from ``first`` on, one after the other: Spark reads them in this order."""
        for number, rows in enumerate(self.files[first:], first):
            path = f"{self.hdfs.path(self.folder)}/input/{number:03d}.csv"
            with self.hdfs.client.create(path, WriteOptions()) as file:
                file.write("".join(f"{user},{amount}\n" for user, amount in rows).encode())

    def has_shown(self, query: str, batch: int) -> bool:
        """Whether the sink of a query has a batch."""
        return any(path.endswith(f"/{query}/output/{batch}/_SUCCESS") for path in self.hdfs.files(self.folder))

    def check(self, suffix: str = "", first: int = 0) -> None:
        """Fail unless each query has shown every batch from ``first`` on, and kept all, as a loop over the rows tells.

        ``suffix``: of the queries' folders.
        """
        shown, kept = self._count()
        for query in QUERIES:
            found = [self._read_output(f"{query}{suffix}", batch) for batch in range(first, len(self.files))]
            assert found == shown[first:], query
            assert self._find_owners(f"{query}{suffix}") == {USER}
        assert self._read_state(f"keyed{suffix}") == kept

    def _count(self) -> tuple[list[Totals], Totals]:
        kept: Totals = defaultdict(lambda: (0, 0))
        shown = []
        for rows in self.files:
            for user, amount in rows:
                kept[user] = kept[user][0] + 1, kept[user][1] + amount
            shown.append({user: kept[user] for user, _ in rows})
        return shown, dict(kept)

    def _read_output(self, query: str, batch: int) -> Totals:
        folder = f"{self.folder}/{query}/output/{batch}"
        totals: Totals = {}
        for path in self.hdfs.files(folder):
            with self.hdfs.client.read(path) as file:
                for user, count, total in csv.reader(file.read().decode().splitlines()):
                    assert user not in totals, f"{user} is in batch {batch} twice"
                    totals[user] = int(count), int(total)
        return totals

    def _find_owners(self, query: str) -> set[str]:
        entries = self.hdfs.client.list_status(self.hdfs.path(f"{self.folder}/{query}"), recursive=True)
        return {entry.owner for entry in entries}

    def _read_state(self, query: str) -> Totals:
        with open_state(f"{self.folder}/{query}/checkpoint", uid="count", state="seen") as state:
            rows = state.to_arrow().to_pylist()
        assert len({row["key"]["user"] for row in rows}) == len(rows)
        return {row["key"]["user"]: (row["value"]["rows"], row["value"]["total"]) for row in rows}


def make(hdfs: HdfsService, files: int, seed: int, folder: str = "", first: int = 0) -> Input:
    """Put so many files into a new folder, or those from ``first`` on into one that has the others."""
    dice = random.Random(seed)
    rows = [[(f"user{dice.randrange(USERS)}", dice.randrange(100)) for _ in range(ROWS)] for _ in range(files)]
    made = Input(hdfs, folder or hdfs.new_folder(), rows)
    made.put(first)
    hdfs.client.set_owner(made.path, USER)
    return made
