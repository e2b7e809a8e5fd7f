"""Checkpoints that move in and out, in all kinds of places, and by processes that are killed at any write."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pyspark_ckpt.moving import adopt, hand_back
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.restoring.request import Restored
from tests.faults.mortal_process import Mortal, is_checkpoint, left_behind, mortal, survives
from tests.offline.adopting.written import read_rows
from tests.services.hdfs_service import HdfsService
from tests.services.s3_server import S3Service

__all__ = ["mortal"]

MOST_RUNS = 300


def _move_until_done(
    mortal: Mortal, target: Path, draw: random.Random, move: Callable[[], Restored]
) -> Restored | None:
    """Repeat a move that is killed again and again. None if the last kill came after its end."""
    done: list[Restored] = []
    for _ in range(MOST_RUNS):
        kill = partial(survives, mortal, target, draw.randrange(25), is_after=draw.random() < 0.5)
        if kill(act=lambda: done.append(move())):
            return done[0]
        if is_checkpoint(target) and not left_behind(target):
            return None
    raise AssertionError(f"{MOST_RUNS} runs were not enough")


@pytest.mark.in_turn
@pytest.mark.parametrize("form", ["rocksdb", "changelog", "format-2", "join-4"])
def test_a_move_is_finished_by_the_same_call_however_often_it_is_killed(
    form: str, checkpoints: Path, mortal: Mortal, quick_path: Path
) -> None:
    draw = random.Random(11)
    whole = adopt(checkpoints / form, quick_path / "whole", 4)
    _move_until_done(mortal, quick_path / "ours", draw, lambda: adopt(checkpoints / form, quick_path / "ours", 4))
    known = hand_back(quick_path / "whole", quick_path / "whole-out")
    _move_until_done(mortal, quick_path / "out", draw, lambda: hand_back(quick_path / "ours", quick_path / "out"))
    again = adopt(quick_path / "out", quick_path / "again", 4)
    by_name = {(each.store, each.name): each.digest for each in again.states if each.digest.rows}
    assert by_name == {(each.store, each.name): each.digest for each in whole.states if each.digest.rows}
    assert by_name == {(each.store, each.name): each.digest for each in known.states if each.digest.rows}
    assert left_behind(quick_path / "out") == left_behind(quick_path / "ours") == []


def _upload(folder: Path, url: str, options: dict[str, str]) -> None:
    place = place_at(url, parse(options).s3)
    for path in folder.rglob("*"):
        if path.is_file():
            place.put(str(path.relative_to(folder)), path.read_bytes())


@pytest.mark.parametrize("service_name", ["s3", "hdfs"])
def test_checkpoints_move_from_and_to_other_places(
    service_name: str, checkpoints: Path, quick_path: Path, request: pytest.FixtureRequest
) -> None:
    service: S3Service | HdfsService = request.getfixturevalue(service_name)
    folder, options = service.new_folder(), service.options
    expected = adopt(checkpoints / "format-2", quick_path / "here", 2)
    _upload(checkpoints / "format-2", f"{folder}/old", options)
    assert adopt(f"{folder}/old", f"{folder}/ours", 2, options=options).states == expected.states
    for provider in ("rocksdb", "hdfs"):
        there, here = f"{folder}/{provider}", quick_path / provider
        assert hand_back(f"{folder}/ours", there, provider, options=options).states == expected.states
        assert adopt(there, here, 2, options=options).states == expected.states
        assert read_rows(here) == read_rows(quick_path / "here")


def test_state_outside_of_its_checkpoint_is_handed_back_into_it(checkpoints: Path, quick_path: Path) -> None:
    options = {"remote": str(quick_path / "remote")}
    adopted = adopt(checkpoints / "hdfs", quick_path / "ours", options=options)
    assert list((quick_path / "remote").rglob("*.snapshot"))
    assert hand_back(quick_path / "ours", quick_path / "out", options=options).states == adopted.states
    assert adopt(quick_path / "out", quick_path / "again").states == adopted.states


def test_a_target_that_is_in_use_is_refused(checkpoints: Path, quick_path: Path) -> None:
    adopt(checkpoints / "hdfs", quick_path / "ours")
    before = {path: path.read_bytes() for path in quick_path.rglob("*") if path.is_file()}
    for target in (quick_path / "ours", quick_path / "ours" / "inside"):
        for move in (adopt, hand_back):
            source = checkpoints / "hdfs" if move is adopt else quick_path / "ours"
            with pytest.raises(InvalidInputError):
                move(source, target)
    assert {path: path.read_bytes() for path in quick_path.rglob("*") if path.is_file()} == before
