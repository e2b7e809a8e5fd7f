"""The files of a composed query, as if one batch had made all of its state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pyspark_ckpt.offline.composing.confs import choose_confs
from pyspark_ckpt.offline.composing.parts import PlacedOperator
from pyspark_ckpt.offline.composing.sources import INFO, PlacedSources
from pyspark_ckpt.offline.writing.creation import write_files
from pyspark_ckpt.offline.writing.first_files import describe_operator
from pyspark_ckpt.offline.writing.held_state import HeldState
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.content import ContentRewrite, check_content
from pyspark_ckpt.state_store.checkpoints.query.copying import RenamingTarget, copy_files
from pyspark_ckpt.state_store.checkpoints.query.entries import (
    change_entry,
    split_lines,
)
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY, SOURCES, operator_names, source_file_names
from pyspark_ckpt.state_store.checkpoints.query.proof import LogProof, QueryFile
from pyspark_ckpt.state_store.checkpoints.query.rewriter import change_stores, describes_operator, find_schema_file
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.names import WATERMARKS_FOLDER
from pyspark_ckpt.state_store.savepoints.possession import OwnFolder


@dataclass(frozen=True)
class ComposedFiles:
    """The files of a query after the batch of ``version``, which goes on with the confs that ``base`` has kept."""

    base: HeldState
    version: int
    partitions: int
    query_id: str
    operators: Sequence[PlacedOperator]
    sources: PlacedSources
    inputs: Sequence[HeldState]
    """All that operators and sources are taken from."""

    def write(self, own: OwnFolder, logs: Mapping[str, bytes]) -> list[QueryFile]:
        """Write the ``logs`` and all other files, ``metadata`` last.

        Raises NotFoundError, FormatError, ConflictError, StorageError.
        """
        written = write_files(own, logs)
        for source in self.sources.sources:
            if source.held is not None:
                folders = f"{SOURCES}/{source.former_id}/", f"{SOURCES}/{source.id}/"
                written += _copy(source.held, source_file_names, folders, own, check_content)
        for operator in self.operators:
            if operator.held is None or operator.former is None:
                (store,) = operator.stores
                name = f"state/{operator.number}/_metadata/metadata"
                written += write_files(own, {name: describe_operator(store.operator, self.partitions).encode()})
            else:
                folders = f"state/{operator.former.operator.number}/", f"state/{operator.number}/"
                written += _copy(operator.held, operator_names, folders, own, self._rewriting(operator))
        return [*written, *write_files(own, {QUERY: json.dumps({"id": self.query_id}).encode()})]

    def make_logs(self) -> dict[str, bytes]:
        """Return the logs of the batch, by name. Raises InvalidInputError (operators of other confs), FormatError."""
        batch = self.version - 1
        offsets, where = self.base.find_entry("offsets")
        head = split_lines(change_entry(offsets, where, self._change_offsets), where)[:2]
        entry = b"\n".join([*head, *self.sources.write_lines(head[0])])
        files = {f"offsets/{each}": entry for each in (batch - 1, batch) if each >= 0}
        if self.sources.are_kept:
            files |= {name: log for name, log in self.base.logs.items() if name.startswith(f"{WATERMARKS_FOLDER}/")}
        return {**files, f"commits/{batch}": change_entry(*self.base.find_entry("commits"), self._change_commit)}

    def _change_offsets(self, entry: dict[str, Any]) -> None:
        entry["batchWatermarkMs"] = self._find_watermark("offsets", "batchWatermarkMs")
        entry["conf"] |= choose_confs(self.base, self.operators)
        entry.pop(INFO, None)
        if self.sources.are_named:
            entry[INFO] = dict(self.sources.info)

    def _change_commit(self, entry: dict[str, Any]) -> None:
        entry["nextBatchWatermarkMs"] = self._find_watermark("commits", "nextBatchWatermarkMs")
        if entry.get("stateUniqueIds"):
            entry["stateUniqueIds"] = {
                str(each.number): [[store.meta.id for store in each.stores]] * self.partitions
                for each in self.operators
            }

    def _find_watermark(self, log: str, name: str) -> int:
        """Return the earliest watermark of those that have begun, as a query has it over several inputs."""
        found = []
        for held in self.inputs:
            watermark_ms = held.decode_entry(log).get(name, 0)
            if type(watermark_ms) is not int:
                _, where = held.find_entry(log)
                raise FormatError(f"{where} has {watermark_ms!r} as {name}, which must be a whole number.")
            found.append(watermark_ms)
        return min((each for each in found if each > 0), default=0)

    def _rewriting(self, operator: PlacedOperator) -> ContentRewrite:
        """Return what gives the metadata of an operator its new number."""

        def change(entry: dict[str, Any]) -> None:
            entry["operatorInfo"]["operatorId"] = operator.number
            change_stores(entry, self.partitions, lambda path: _renumber_path(path, operator.number))

        def rewrite(name: str, content: bytes, where: str) -> bytes:
            if describes_operator(name):
                return change_entry(content, where, change)
            return check_content(name, content, where)

        return rewrite


def _copy(
    held: HeldState,
    names: Callable[[BlobPlace], Iterator[str]],
    folders: tuple[str, str],
    own: OwnFolder,
    rewrite: ContentRewrite,
) -> list[QueryFile]:
    """Copy those of the files ``names`` that are below the first of two folders to below the other."""
    place, (before, after) = held.source.place, folders

    def rename(name: str) -> str:
        return f"{after}{name.removeprefix(before)}"

    def find() -> Iterator[str]:
        return (name for name in names(place) if name.startswith(before))

    change = held.make_proof(rewrite, before)
    copied = copy_files(find, place, RenamingTarget(own, rename), change)
    if isinstance(change, LogProof):
        change.require_all(place)
    return [msgspec.structs.replace(each, name=rename(each.name)) for each in copied]


def _renumber_path(path: str, number: int) -> str:
    """Return the path of a schema file, as Spark stores it, below the new number of its operator."""
    name = find_schema_file(path)
    if name is None:
        return path
    _, _, rest = name.removeprefix("state/").partition("/")
    return f"{path.removesuffix(name)}state/{number}/{rest}"
