"""Moves the rows of stores of this package into stores of Spark's own providers, each into one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyspark_ckpt.offline.adopting.avro_rows import AvroRows
from pyspark_ckpt.offline.adopting.moving import SparkStore, count_partitions
from pyspark_ckpt.offline.adopting.rows import make_key_codec
from pyspark_ckpt.offline.adopting.stores import FAMILY_BYTES, Form, Provider
from pyspark_ckpt.offline.descriptions.operators import name_operator
from pyspark_ckpt.offline.handing_back.files import Family, write_database, write_snapshot
from pyspark_ckpt.offline.handing_back.rows import RowReverter
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally, digest_tallies, refuse_stray_rows, scan_state
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import EMPTY_ID, ORDERED_BIT
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE
from pyspark_ckpt.state_store.json_objects import Count, Name
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, NewStore
from pyspark_ckpt.state_store.redistribution.strategies.base import Moved, RunTasks

FIRST_FAMILY = 2
"""Spark gives the number 1 to the state ``default``, which has no rows if there are others."""


class HandedBack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A store in Spark's form: digests of its states before, and after it was read again, and how much was written."""

    before: dict[Name, Digest]
    after: dict[Name, Digest]
    written_bytes: Count


@dataclass(frozen=True)
class HandBackTask:
    """Writes one store as Spark's provider stores it, below ``url``, and reads it again.

    ``partitions``: how many of its operator have state.
    """

    workplace: Workplace
    source: StoreVersion
    form: Form
    url: str
    partitions: int

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"hand-back-{self.source.identity.key}"

    def __call__(self) -> HandedBack:
        """Write the store. Raises StorageError, FormatError, NotFoundError, InvalidInputError."""
        tallies = defaultdict[str, Tally](Tally)
        with (
            self.workplace.folder() as folder,
            self.workplace.restore(self.source, folder / "copy") as restored,
        ):
            refuse_stray_rows(restored.database, restored.meta, str(self.source.identity))
            written = self._write(restored.database, restored.meta, tallies, folder)
        return HandedBack(digest_tallies(tallies), self._read_again(), written)

    def _write(self, database: Database, meta: StoreMeta, tallies: dict[str, Tally], folder: Path) -> int:
        place, version = self.workplace.place(self.url), self.source.meta.version
        families = number_families(meta)
        rows = self._rows(database, meta, families, tallies)
        if self.form.provider == "hdfs":
            return write_snapshot(place, version, rows, folder)

        def count_rows(*, internal: bool) -> int:
            return sum(tallies[each.name].rows for each in meta.states if each.descriptor.internal == internal)

        return write_database(
            place,
            version,
            rows,
            families,
            folder / "new",
            lambda: (count_rows(internal=False), count_rows(internal=True)),
        )

    def _rows(
        self, database: Database, meta: StoreMeta, families: dict[str, Family], tallies: dict[str, Tally]
    ) -> Iterator[tuple[bytes, bytes]]:
        identity = self.source.identity
        for state in meta.states:
            tallies[state.name] = Tally()
            name = identity.name if state.name == DEFAULT_STORE else state.name
            reverter = RowReverter(state, name, self.form, f"{identity}, state {state.name!r}")
            head = families[state.name].number.to_bytes(FAMILY_BYTES, "little") if families else b""
            for rows in scan_state(database, state.number):
                tallies[state.name].count(rows)
                yield from zip(*reverter.revert(rows, head), strict=True)

    def _read_again(self) -> dict[str, Digest]:
        meta = msgspec.structs.replace(self.source.meta, id=EMPTY_ID)
        written = StoreVersion(self.source.identity, self.url, meta)
        tallies = defaultdict[str, Tally](Tally)
        with self.workplace.folder() as folder:
            for state, rows, _ in SparkStore(self.workplace, written, self.form, self.partitions).read(
                folder / "again"
            ):
                tallies[state].count(rows)
        return digest_tallies(tallies)


def number_families(meta: StoreMeta) -> dict[str, Family]:
    """Return the states of a store with their numbers in Spark's keys; none if it has one state without a name."""
    names = [state.name for state in meta.states]
    if names in ([], [DEFAULT_STORE]):
        return {}
    others = [state for state in meta.states if state.name != DEFAULT_STORE]
    families = {
        state.name: Family(number, state.descriptor.internal) for number, state in enumerate(others, FIRST_FAMILY)
    }
    return {DEFAULT_STORE: Family(1, is_internal=False), **families}


def find_refusals(operators: Sequence[OperatorVersion], provider: Provider) -> Iterator[str]:
    """Yield why state of some operators cannot be in stores of a provider."""
    for operator in operators:
        is_keyed = operator.layout is Layout.KEY_GROUPS
        name = name_operator(operator.operator.name, operator.uids, is_keyed=is_keyed)
        what = f"operator {operator.operator.number} ({name})"
        if is_keyed:
            yield f"{what} is a keyed operator: Spark has none."
        elif provider == "hdfs" and any(map(_needs_rocksdb, operator.metas)):
            yield f"{what} has several states in a store, or scans keys in order, so it needs `provider` 'rocksdb'."
    for operator in operators:
        yield from _find_unwritable(operator)


def _find_unwritable(operator: OperatorVersion) -> Iterator[str]:
    """Yield which states have keys that cannot be proved to be in their partition, or rows that have no form."""
    what = f"operator {operator.operator.number} ({operator.operator.name})"
    for name, stores in operator.stores.items():
        for state in {state.name: state for store in stores for state in store.meta.states}.values():
            try:
                make_key_codec(state, own := name if state.name == DEFAULT_STORE else state.name, what)
            except (FormatError, InvalidInputError) as problem:
                yield f"the keys of {what}, state {state.name!r}, cannot be hashed. {problem.message}"
                continue
            try:
                if state.descriptor.value_schemas:
                    AvroRows(state, own, f"state {state.name!r}")
            except (FormatError, InvalidInputError) as problem:
                yield f"{what} cannot be written as Avro: {problem.message}"


def _needs_rocksdb(meta: StoreMeta) -> bool:
    return bool(number_families(meta)) or any(state.number & ORDERED_BIT for state in meta.states)


@dataclass(frozen=True)
class HandBack:
    """Moves the stores of one name. See Strategy."""

    workplace: Workplace
    form: Form
    partitions: int

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """See Strategy."""
        tasks = [
            HandBackTask(self.workplace, old, self.form, each.url, self.partitions)
            for old, each in zip(stores, new, strict=True)
        ]
        done: list[HandedBack] = run(tasks, HandedBack)
        made = [Assembled(each.after, each.written_bytes, 0) for each in done]
        return Moved([each.before for each in done], made)


@dataclass(frozen=True)
class SparksTarget:
    """Stores of one of Spark's own providers, in which a query gets its state. See ``OtherTarget``."""

    workplace: Workplace
    form: Form
    provider_class: str

    def strategy(self, operator: OperatorVersion) -> HandBack:
        """See ``OtherTarget``."""
        return HandBack(self.workplace, self.form, count_partitions(operator))
