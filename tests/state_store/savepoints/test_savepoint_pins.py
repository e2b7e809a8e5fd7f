"""A savepoint of a query that runs on: its version is pinned, and its logs and sources belong together."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.errors import NotFoundError, StorageError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.retention.pins import FOLDER as PINS_FOLDER
from pyspark_ckpt.state_store.retention.pins import Pin, Pins
from pyspark_ckpt.state_store.savepoints import creation as savepoint_creation
from tests.labs.saved_query import files, stored, written


def test_a_savepoint_has_its_logs_when_the_query_has_deleted_them_meanwhile(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    taken: dict[str, Any] = {"version": query.version, "rows": dict(query.rows)}

    def slow(checkpoint: Checkpoint, version: int, *more: Any) -> Any:  # noqa: ANN401
        query.run(3)
        query.purge(2)
        return list_operators(checkpoint, version, *more)

    monkeypatch.setattr(savepoint_creation, "list_operators", slow)
    info = savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert info.version == taken["version"] < query.version
    savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), parallelism=3)
    assert stored(str(quick_path / "restored")) == (info.version, 3, taken["rows"])


def test_a_savepoint_is_of_a_newer_batch_when_the_logs_of_the_first_are_gone(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, add = written(quick_path / "query", 1, operators=(0,)), Pins.add

    def late(pins: Pins, version: int, for_s: float) -> Any:  # noqa: ANN401
        if query.version == version == 3:
            query.run(3)
            query.purge(2)
        return add(pins, version, for_s)

    monkeypatch.setattr(Pins, "add", late)
    info = savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert info.version == query.version == 6
    assert sorted(path.name for path in (quick_path / "taken" / "offsets").iterdir()) == ["4", "5"]
    savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"))
    assert stored(str(quick_path / "restored")) == (6, 1, query.rows)


def test_a_pin_that_stays_fails_nothing_that_was_done_while_it_was_held(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query, delete = written(quick_path / "query", 1, operators=(1,), batches=1), LocalPlace.delete

    def refused(place: LocalPlace, name: str) -> None:
        if name.startswith(PINS_FOLDER):
            raise StorageError(f"Could not delete {name}: made up.")
        delete(place, name)

    monkeypatch.setattr(LocalPlace, "delete", refused)
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    savepoints.restore(query.location, str(quick_path / "rescaled"), parallelism=2)
    assert stored(str(quick_path / "taken")) == (query.version, 1, query.rows)
    assert stored(str(quick_path / "rescaled")) == (query.version, 2, query.rows)
    assert [each.levelname for each in caplog.records if "ends by itself" in each.getMessage()] == ["WARNING"] * 2


def test_a_savepoint_says_that_its_process_stood_still_when_its_version_is_gone(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=2)
    monkeypatch.setattr(savepoint_creation, "PIN_S", 0.2)
    monkeypatch.setattr(Pins, "renew", lambda *_: (_ for _ in ()).throw(StorageError("suspended")))

    def take() -> None:
        with savepoint_creation.pin(Checkpoint(query.location, parse({}))):
            query.run(3, snapshots=True)
            time.sleep(0.5)
            gc = ["checkpoint", "gc", query.location, "--keep", "1", "-o", "retentionGracePeriod=0"]
            assert main(gc) == 0
            raise NotFoundError("A delta is missing.")

    with pytest.raises(NotFoundError, match="This process stalled for longer") as failed:
        take()
    assert failed.value.message.startswith("A delta is missing. Version 2 was pinned")


def test_a_pin_is_renewed_again_when_that_has_failed(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, renew = written(quick_path / "query", 1, operators=(1,), batches=1), Pins.renew
    problems, renewed = iter([NotFoundError("made up")]), threading.Event()

    def renewing(pins: Pins, pin: Pin, for_s: float) -> Pin:
        for each in problems:
            raise each
        new = renew(pins, pin, for_s)
        renewed.set()
        return new

    monkeypatch.setattr(Pins, "renew", renewing)
    monkeypatch.setattr(savepoint_creation, "PIN_S", 0.4)
    with savepoint_creation.pin(Checkpoint(query.location, parse({}))):
        assert renewed.wait(20)
    assert Pins(LocalPlace(Path(query.location))).list_held() == []


def test_sources_know_every_batch_whose_offsets_a_savepoint_has(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, walk = written(quick_path / "query", 1, operators=(1,)), LocalPlace.walk
    planned = iter([1])

    def plan(place: LocalPlace) -> None:
        if place.url == query.location and next(planned, None):
            query.plan()

    def walked(place: LocalPlace, folder: str = "") -> Any:  # noqa: ANN401
        found = walk(place, folder)
        if folder in ("", "sources"):
            plan(place)
        return found

    monkeypatch.setattr(LocalPlace, "walk", walked)
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert LocalPlace(Path(query.location)).list("offsets")[-1].name == "offsets/3"
    offsets, known = (
        {path.name for path in (quick_path / "taken" / each).rglob("*")} for each in ("offsets", "sources")
    )
    assert offsets <= known


def test_a_savepoint_has_nothing_that_a_source_dropped_while_it_was_copied(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, get = written(quick_path / "query", 1, operators=(1,)), LocalPlace.get
    compacted = LocalPlace(Path(query.location))
    begun = iter([1])

    def compacting(place: LocalPlace, name: str, *more: Any) -> bytes:  # noqa: ANN401
        if (place.url, name) == (query.location, "sources/0/1") and next(begun, None):
            compacted.put("sources/0/2.compact", b"v1\n{}\n{}")
            for each in ("sources/0/0", "sources/0/1"):
                compacted.delete(each)
        return get(place, name, *more)

    monkeypatch.setattr(LocalPlace, "get", compacting)
    info = savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert next(begun, None) is None, "the source has compacted"
    sources = [f"sources/{name}" for name in sorted(files(quick_path / "taken" / "sources"))]
    assert sources == [file.name for file in info.files if file.name.startswith("sources/")]
    assert main(["savepoint", "verify", str(quick_path / "taken")]) == 0
    savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"))
    assert stored(str(quick_path / "restored")) == (query.version, 1, query.rows)
