"""What must be true of the stored objects, looked at past any fault, after each request that changes one."""

from __future__ import annotations

import json
from collections import Counter

from pyspark_ckpt.state_store.blobs import Blob
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import decode
from tests.simulation.history import Batch
from tests.simulation.object_service import ObjectService

KINDS = frozenset({"delta", "snapshot", "sst", "winner", "notice"})


class Violation(BaseException):
    """Something is so that must never be. No code of the engine can catch this."""


class StoredQuery:
    """The checkpoint of a query as it lies in its service.

    ``newest`` is the newest version that the commit log has, and ``first_kept`` the oldest that nobody may delete.
    """

    def __init__(self, service: ObjectService, lead: str, keep: int) -> None:
        """Look at the objects whose keys begin with ``lead``. ``keep`` versions below the newest are retained."""
        self._service = service
        self._lead = lead
        self._keep = keep
        self._tables: dict[tuple[str, float], frozenset[str]] = {}
        self.newest = 0
        self.first_kept = 0
        self.deleted: Counter[str] = Counter()
        """How many objects of each kind were deleted."""
        service.on_change = self._look

    def key(self, name: str) -> str:
        """Return the key of an object of the checkpoint."""
        return self._lead + name

    def numbers(self, log: str) -> list[int]:
        """Return the numbers of all entries of one of Spark's logs."""
        lead = self.key(f"{log}/")
        return sorted(int(key.removeprefix(lead)) for key in self._service.objects if key.startswith(lead))

    @property
    def newest_epoch(self) -> int:
        """The number of the newest run."""
        lead = self.key("_ckpt/runs/")
        numbers = (key[len(lead) :].partition(".")[0] for key in self._service.objects if key.startswith(lead))
        return max(map(int, numbers), default=0)

    def ids_of(self, number: int) -> list[str] | None:
        """Return the ids that an entry of the commit log names, by partition; None in format 1."""
        content = self._service.objects[self.key(f"commits/{number}")].data
        ids = json.loads(content.partition(b"\n")[2]).get("stateUniqueIds")
        return None if ids is None else [each[0] for each in ids["0"]]

    def chain_of(self, number: int) -> str:
        """Return the history that a batch has made."""
        return Batch.decode(number, self._service.objects[self.key(f"offsets/{number}")].data).chain

    def retained(self) -> list[int]:
        """Return the batches whose versions must be there."""
        return [number for number in self.numbers("commits") if number + 1 >= max(1, self.first_kept)]

    def _look(self, verb: str, key: str) -> None:
        name = key.removeprefix(self._lead)
        if name.startswith("commits/"):
            self.newest = max(self.numbers("commits"), default=-1) + 1
            self.first_kept = max(self.first_kept, self.newest - self._keep)
        elif verb == "delete" and name.startswith("state/"):
            self.deleted[f"deleted {_kind_of(name)}"] += 1
            self._require_restorable(int(name.split("/")[2]), name)

    def _require_restorable(self, partition: int, deleted: str) -> None:
        """Fail unless every retained version of a store can be restored from what is stored."""
        lead = self.key(f"state/0/{partition}/")
        blobs = [
            Blob(key.removeprefix(lead), len(stored.data), stored.modified_s)
            for key, stored in self._service.objects.items()
            if key.startswith(lead)
        ]
        lineage, listed = Lineage.of(blobs), {blob.name for blob in blobs}
        for number in self.retained():
            version, ids = number + 1, self.ids_of(number)
            # Without ids, only the engine knows which commit stands: one of them at least must be there.
            commits = lineage.list_commits(version) if ids is None else [Marker(version, ids[partition])]
            if not any(self._is_restorable(commit, lineage, listed, lead) for commit in commits):
                raise Violation(f"version {version} of {partition} cannot be restored after {deleted} was deleted")

    def _is_restorable(self, commit: Marker, lineage: Lineage, listed: set[str], lead: str) -> bool:
        at = commit
        while at != EMPTY:
            if at in lineage.snapshots and self._tables_of(lead, lineage.snapshots[at]) <= listed:
                return True
            if at not in lineage.deltas:
                return False
            at = lineage.deltas[at][0].parent
        return True

    def _tables_of(self, lead: str, manifest: Blob) -> frozenset[str]:
        key = (lead + manifest.name, manifest.modified_s)
        if key not in self._tables:
            content = self._service.objects[lead + manifest.name].data
            self._tables[key] = frozenset(decode(content, manifest.name).objects())
        return self._tables[key]


def _kind_of(name: str) -> str:
    kind = name.rpartition(".")[2]
    return kind if kind in KINDS else "other"
