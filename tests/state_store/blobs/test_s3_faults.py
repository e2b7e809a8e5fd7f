"""State in S3 under a faulty network: seeded faults on every kind of request, and never a wrong row."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from pyspark_ckpt.state_store.blobs import S3Settings, place_at
from tests.conftest import MakeLab
from tests.faults.faulty_s3 import KINDS, Faults, assert_works, proxy
from tests.labs.lab import CallError, Lab, expected
from tests.services.s3_server import S3Service
from tests.state_store.restore.test_remote import started

VERSIONS = 8
T = TypeVar("T")


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KINDS)
def test_a_place_does_what_it_says_when_one_kind_of_fault_is_met(kind: str, s3: S3Service, tmp_path: Path) -> None:
    """Every other request meets the fault."""
    faults = Faults(lambda _method, number: kind if number % 2 else None)
    with proxy(s3.endpoint, faults) as endpoint:
        place = place_at(f"{s3.new_folder()}/state", S3Settings(endpoint=endpoint, addressing="path"))
        assert_works(place, random.Random(kind).randbytes(20 << 20), tmp_path)
    assert faults.seen[kind] > 3


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(3))
def test_every_version_is_right_when_requests_meet_random_faults(seed: int, make_lab: MakeLab, s3: S3Service) -> None:
    """A caller does what Spark does: an error that may pass is tried again, on the same base."""
    draw = random.Random(seed)
    faults = Faults(lambda _method, _number: draw.choice(KINDS) if draw.random() < 0.3 else None)
    with proxy(s3.endpoint, faults) as endpoint:
        lab = started(make_lab, remote=s3.new_folder(), s3Endpoint=endpoint, s3Addressing="path")
        ids: list[str] = []
        for version in range(VERSIONS):
            ids += again(partial(grow_by_one, lab, ids))
            if version % 3 == 2:
                again(partial(tidy, lab))
            if version % 4 == 3:
                lab.restart(lose_local=True)
        for version in range(1, VERSIONS + 1):
            lab.restart(lose_local=True)
            assert again(partial(rows_of, lab, version, ids[version - 1])) == expected(version)
    assert faults.seen.total() > faults.seen["requests"] + 5


def grow_by_one(lab: Lab, ids: list[str]) -> list[str]:
    return lab.grow(lab.open(), 1, len(ids), ids[-1] if ids else None)


def tidy(lab: Lab) -> None:
    """What maintenance does."""
    handle = lab.open()
    lab.server.call("snapshot", handle=handle, force=True)
    lab.server.call("cleanup", handle=handle)


def rows_of(lab: Lab, version: int, commit_id: str) -> dict[str, str]:
    return lab.begin(lab.open(), version, commit_id).rows


def again(call: Callable[[], T]) -> T:
    """Try a call again while its error says that it may succeed later."""
    for _ in range(20):
        try:
            return call()
        except CallError as problem:
            if not problem.retryable:
                raise
    raise AssertionError("it never succeeded")
