"""Rows that are moved to other partitions stay what they are, and are where they belong, or nothing is made."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.local import files
from pyspark_ckpt.state_store.blobs.local import place as local
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import ORDERED_BIT
from pyspark_ckpt.state_store.format.meta import Descriptor, StoreMeta
from pyspark_ckpt.state_store.format.names import TABLE_FOLDER
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution import clipping, splitting
from pyspark_ckpt.state_store.redistribution.jobs import RunHere
from pyspark_ckpt.state_store.redistribution.merged_states import merge_states
from pyspark_ckpt.state_store.redistribution.splitting import PartitionWriters
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from pyspark_ckpt.state_store.sst.scan import scan_rows
from tests.fuzz.mutations import EXAMPLES
from tests.labs import saved_query
from tests.labs.saved_query import EXPIRY, MAX_PARALLELISM, SAVEPOINT_KINDS, stored, written

NUMBERS = (1, 2, 3, 4, 7, 8, 16)
ONLY_EXPIRY = {name: saved_query.STATES[2, "default"][name] for name in ("default", EXPIRY)}


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(EXAMPLES // 40))
@pytest.mark.parametrize("width", [1, pytest.param(2, marks=pytest.mark.matrix), 100])
def test_every_row_is_in_its_partition_when_a_query_is_rescaled_again_and_again(
    width: int, seed: int, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunHere, "width", width)  # how rows are moved depends on how many tasks run at once
    walk = random.Random(seed).sample(NUMBERS, 4)
    query = written(quick_path / "0", walk[0], seed=seed, checkpoint_format=1 if (width + seed) % 2 else 2)
    for step, (_, partitions) in enumerate(pairwise((*walk, walk[0])), 1):
        savepoints.restore(str(quick_path / f"{step - 1}"), str(quick_path / str(step)), parallelism=partitions)
        assert stored(str(quick_path / str(step))) == (query.version, partitions, query.rows), f"{seed}: {walk}"


@pytest.mark.parametrize("width", [1, 100])
def test_a_digest_that_differs_fails_the_restore_for_good(
    width: int, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    target, write = quick_path / "restored", PartitionWriters.write

    def lossy(writers: PartitionWriters, rows: PackedRows) -> None:
        write(writers, rows.take(slice(1, None)))

    with monkeypatch.context() as patched:
        patched.setattr(RunHere, "width", width)
        patched.setattr(PartitionWriters, "write", lossy)
        with pytest.raises(
            FormatError, match=r"operator 0, store 'left': state 'by time' had \d+ rows with the digest"
        ):
            savepoints.restore(query.location, str(target), parallelism=3)
    with pytest.raises(InvalidInputError, match="is not a checkpoint"):
        Checkpoint(str(target), parse({}))


def test_partitions_without_key_groups_are_left_behind(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = written(quick_path / "query", MAX_PARALLELISM + 8, operators=(2,))
    savepoints.restore(query.location, str(quick_path / "restored"), parallelism=3)
    assert stored(str(quick_path / "restored")) == (query.version, 3, query.rows)
    with monkeypatch.context() as patched:
        patched.setattr(saved_query, "partition_of", lambda _kind, _row_hash, partitions: partitions - 1)
        query = written(quick_path / "wrong", MAX_PARALLELISM + 8, operators=(2,))
    with pytest.raises(FormatError, match=r"state '\S+' has \d+ rows, but 0 were found"):
        savepoints.restore(query.location, str(quick_path / "refused"), parallelism=3)


def test_new_partitions_share_files_with_each_other_and_not_with_the_source(quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(2,))
    savepoints.restore(query.location, str(quick_path / "restored"), parallelism=4)
    tables = list((quick_path / "restored").rglob("*.sst"))
    assert {path.stat().st_nlink for path in tables if path.stat().st_nlink > 1} == {4}
    assert all(path.stat().st_nlink == 1 for path in Path(query.location).rglob("*.sst"))
    assert stored(str(quick_path / "restored")) == (query.version, 4, query.rows)
    shutil.rmtree(quick_path / "restored" / "state" / "0" / "0")
    assert {path.stat().st_nlink for path in (quick_path / "restored").rglob("*.sst")} == {1, 3}


@pytest.mark.parametrize("operator", [0, 2])
def test_a_new_store_is_published_when_its_files_are_durable(
    operator: int, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 1, operators=(operator,))
    synced, published = set[Path](), list[bool]()
    sync, put = files.sync_folder, LocalPlace.put_if_absent

    def noted(folder: Path) -> None:
        sync(folder)
        synced.add(folder)

    def checked(place: LocalPlace, name: str, data: bytes) -> bool:
        if name.endswith(".snapshot"):
            published.append(Path(place.url) / TABLE_FOLDER in synced)
        return put(place, name, data)

    monkeypatch.setattr(local, "sync_folder", noted)
    monkeypatch.setattr(LocalPlace, "put_if_absent", checked)
    savepoints.restore(query.location, str(quick_path / "restored"), parallelism=4)
    assert published.count(True) == len(published) >= 4


def test_rows_that_nobody_counts_are_counted_before_they_are_moved(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(saved_query.STATES, (2, "default"), ONLY_EXPIRY)
    query = written(quick_path / "query", 2, operators=(2,))

    def lossy(database: Database, begin: bytes, end: bytes, *, readers: int) -> Iterator[PackedRows]:
        is_ordered = begin[0] & ORDERED_BIT >> 8
        return (rows.take(slice(is_ordered, None)) for rows in scan_rows(database, begin, end, readers=readers))

    monkeypatch.setattr(clipping, "scan_rows", lossy)
    with pytest.raises(FormatError, match=rf"state '{EXPIRY}' has \d+ rows, but \d+ were found"):
        savepoints.restore(query.location, str(quick_path / "restored"), parallelism=3)


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_the_rows_of_many_partitions_are_moved_in_passes(
    kind: Kind, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 3)
    savepoints.savepoint(query.location, str(quick_path / "taken"), kind=kind)
    monkeypatch.setattr(splitting, "MAX_WRITERS", 2)
    monkeypatch.setattr(splitting, "MAX_OPEN_BYTES", 1)
    savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), parallelism=7)
    assert stored(str(quick_path / "restored")) == (query.version, 7, query.rows)


def test_a_row_that_is_in_a_wrong_partition_is_refused(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(saved_query.STATES, (2, "default"), ONLY_EXPIRY)
        patched.setattr(saved_query, "partition_of", lambda _kind, row_hash, _partitions: row_hash & 1)
        query = written(quick_path / "query", 2, operators=(2,))
    with pytest.raises(FormatError, match=rf"state '{EXPIRY}' has \d+ rows, but \d+ were found"):
        savepoints.restore(query.location, str(quick_path / "restored"), parallelism=3)
    with pytest.raises(InvalidInputError, match="is not a checkpoint"):
        Checkpoint(str(quick_path / "restored"), parse({}))


def history(*types: str) -> Descriptor:
    return Descriptor(value_schema={"value": {"schemas": list(types), "current": len(types)}})


def meta_with(**states: Descriptor) -> StoreMeta:
    empty = StoreMeta(version=1, id="a", parent="0", num_partitions=2, counter=0, states=())
    for name, descriptor in states.items():
        empty, _ = empty.with_state(name, descriptor)
    return empty


def test_the_longest_history_of_types_reads_the_rows_of_all_partitions() -> None:
    short, long = meta_with(a=history("int"), b=history("x")), meta_with(b=history("x"), a=history("int", "long"))
    for metas in ((short, long), (long, short)):
        whole = merge_states(metas, "operator 0")
        assert {state.name: state.descriptor for state in whole.states} == {
            "a": history("int", "long"),
            "b": history("x"),
        }
        numbers = {state.name: state.number for state in whole.states}
        for meta, became in zip(metas, whole.numbers, strict=True):
            assert {state.name: became[state.number] for state in meta.states} == numbers
    with pytest.raises(InvalidInputError, match="state 'a' did not change in the same order"):
        merge_states((long, meta_with(a=history("int", "string"))), "operator 0")
