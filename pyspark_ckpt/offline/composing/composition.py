"""Write a canonical savepoint of operators and sources that were those of other queries."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from pyspark_ckpt.offline.composing.files import ComposedFiles
from pyspark_ckpt.offline.composing.parts import Part, PlacedOperator, place_operators
from pyspark_ckpt.offline.composing.sources import GivenSource, PlacedSources, keep_sources, place_sources
from pyspark_ckpt.offline.writing.creation import NO_STORE, publish_rows
from pyspark_ckpt.offline.writing.held_state import HeldState, hold_state
from pyspark_ckpt.offline.writing.store_writing import StoreWriting
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query.migrations import AppliedMigration, write_migrations
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.savepoints.nesting import refuse_nested
from pyspark_ckpt.state_store.savepoints.possession import Possession, explaining_what_is_left
from pyspark_ckpt.state_store.savepoints.savepoint import SavepointInfo, refuse_unless_empty


@dataclass(frozen=True)
class Composition:
    """One call of ``compose_savepoint``.

    ``inputs``: what is taken from, by location, the one first that the confs are of. ``sources``: None for all of the
    only input.
    """

    inputs: Mapping[str, Checkpoint]
    operators: Sequence[Part | None]
    sources: Sequence[GivenSource] | None
    target: str
    options: Options
    runner: Runner
    progress: Progress
    written_by: str

    def run(self) -> SavepointInfo:
        """Write the savepoint. Raises as ``compose_savepoint``."""
        workplace = Workplace(replace(self.options, remote=""))
        place = workplace.resolve(self.target)
        for each in self.inputs.values():
            refuse_nested(place, each, "a savepoint")
        refuse_unless_empty(place, "a savepoint")
        base, *_ = self.inputs.values()
        possession = Possession(place, base.place)
        with explaining_what_is_left(possession.describe_what_is_left), self._hold() as held:
            first, *_ = held.values()
            version, partitions = max(each.version for each in held.values()), first.count_partitions()
            operators = place_operators(self.operators, held, version, partitions)
            sources = self._place_sources(held)
            migrations = _join_migrations(held.values())
            write_migrations(migrations)  # they must fit into the file, which is written last
            query_id = str(uuid.uuid4()) if len(held) > 1 else first.source.query_id
            files = ComposedFiles(first, version, partitions, query_id, operators, sources, tuple(held.values()))
            logs = files.make_logs()
            possession.take(version)
            rows = [
                write.run()
                for operator in operators
                for write in self._list_writes(workplace, place, operator, partitions)
            ]
            info = publish_rows(
                place,
                possession,
                version,
                first.source.place.url,
                self.written_by,
                [store for operator in operators for store in operator.stores],
                rows,
                files.write(possession.folder, logs),
                migrations,
            )
        possession.release()
        return info

    def _list_writes(
        self, workplace: Workplace, place: BlobPlace, operator: PlacedOperator, partitions: int
    ) -> Iterator[StoreWriting]:
        for store in operator.stores:
            source = NO_STORE
            if operator.held is not None and operator.former is not None:
                source = operator.held.find_store(operator.former.operator.number, store.name)
            yield StoreWriting(workplace, store, source, place.url, partitions, self.runner, self.progress)

    def _place_sources(self, held: Mapping[str, HeldState]) -> PlacedSources:
        if self.sources is not None:
            return place_sources(self.sources, held)
        if len(held) > 1:
            raise InvalidInputError(
                f"`operators` are from {list(held)}, so `sources` must name those of the new query.",
                hint="List them as the program has them: sources=[('/saved/views', 0), ('/saved/pays', 0)].",
            )
        (only,) = held.values()
        return keep_sources(only)

    @contextmanager
    def _hold(self) -> Iterator[dict[str, HeldState]]:
        with ExitStack() as stack:
            yield {location: stack.enter_context(hold_state(each)) for location, each in self.inputs.items()}


def _join_migrations(inputs: Iterable[HeldState]) -> tuple[AppliedMigration, ...]:
    """Return the migrations of all inputs, those of the first one first."""
    found: dict[str, AppliedMigration] = {}
    for held in inputs:
        for each in held.read_migrations():
            found.setdefault(each.name, each)
    return tuple(found.values())
