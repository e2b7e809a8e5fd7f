"""A service of S3 that ignores the condition of a write is refused for whatever relies on being the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.blobs import MeteredPlace, S3Settings, Traffic, place_at
from pyspark_ckpt.state_store.blobs.exclusive import is_exclusive
from pyspark_ckpt.state_store.blobs.local import LocalPlace
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.jobs import RunHere
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoint_creation import create
from tests.conftest import MakeLab
from tests.faulty_s3 import Faults, proxy
from tests.lab import CallError, expected
from tests.s3_server import S3Service
from tests.state_store.test_remote import started


@pytest.fixture
def careless(s3: S3Service) -> Iterator[tuple[str, Faults]]:
    """The endpoint of a service that ignores ``If-None-Match``, and what it has seen."""
    faults = Faults(lambda _method, _number: "ignored")
    with proxy(s3.endpoint, faults) as endpoint:
        yield endpoint, faults


def test_a_service_that_ignores_conditions_is_found_out_once_and_nothing_is_left(
    careless: tuple[str, Faults], s3: S3Service
) -> None:
    endpoint, faults = careless
    folder = s3.new_folder()
    for number in range(3):
        place = place_at(f"{folder}/{number}", S3Settings(endpoint=endpoint, addressing="path"))
        assert not is_exclusive(MeteredPlace(place, Traffic()))
    assert faults.seen["requests"] == 3, "two writes and a delete"
    assert s3.files(folder) == []


def test_a_service_that_honours_conditions_is_one_that_can_be_relied_on(s3: S3Service, tmp_path: Path) -> None:
    folder = s3.new_folder()
    assert is_exclusive(place_at(folder, S3Settings(endpoint=s3.endpoint, addressing="path")))
    assert s3.files(folder) == []
    assert is_exclusive(MeteredPlace(LocalPlace(tmp_path), Traffic()))


@pytest.mark.parametrize("kind", ["slow_down", "no_answer", "refused", "late"])
def test_a_service_is_not_misjudged_when_requests_fail(kind: str, s3: S3Service) -> None:
    with proxy(s3.endpoint, Faults(lambda _method, number: kind if number % 2 else None)) as endpoint:
        assert is_exclusive(place_at(s3.new_folder(), S3Settings(endpoint=endpoint, addressing="path")))


@pytest.mark.parametrize("where", ["remote", "checkpoint"])
def test_format_1_is_refused_by_name_and_format_2_is_not(
    where: str, careless: tuple[str, Faults], make_lab: MakeLab, s3: S3Service
) -> None:
    options, place = {"s3Endpoint": careless[0], "s3Addressing": "path"}, dict[str, Any]()
    if where == "remote":
        lab = started(make_lab, remote=s3.new_folder(), **options)
    else:
        lab, root = make_lab(**options), s3.new_folder()
        place = {"checkpoint_root": root, "state_dir": f"{root}/state/0/3"}
    with pytest.raises(CallError, match=r"s3://.* cannot be used for checkpoint format 1") as caught:
        lab.begin(lab.open(fmt=1, **place), 0)
    assert caught.value.kind == "InvalidInputError"
    assert "checkpointFormatVersion to 2" in caught.value.hint
    ids = lab.grow(lab.open(fmt=2, **place), 2)
    assert lab.begin(lab.open(fmt=2, **place), 2, ids[-1]).rows == expected(2)


def test_savepoints_and_restores_are_refused_by_name(
    careless: tuple[str, Faults], make_lab: MakeLab, s3: S3Service
) -> None:
    """Two of them in one folder would mix."""
    lab = make_lab()
    lab.name_query()
    ids = lab.grow(lab.open(), 1)
    lab.log_commit(0, ids)
    options = parse({"s3Endpoint": careless[0], "s3Addressing": "path"})
    for kind in ("native", "canonical"):
        with pytest.raises(InvalidInputError, match=r"s3://.* cannot be used for savepoints"):
            create(str(lab.checkpoint), s3.new_folder(), options, RunHere(), lambda *_: None, written_by="x", kind=kind)
