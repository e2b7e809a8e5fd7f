"""Fixtures of the tests of commands."""

from __future__ import annotations

import pytest

from tests.cli.commands import make_checkpoint
from tests.conftest import MakeLab
from tests.labs.lab import Lab
from tests.services.s3_server import S3Service


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Where state lies: in the folder of its checkpoint, or in S3 if a test says so."""
    return str(getattr(request, "param", "folder"))


@pytest.fixture
def lab(make_lab: MakeLab, kind: str, request: pytest.FixtureRequest) -> Lab:
    """A checkpoint of five versions, with its state where the test wants it."""
    options = {}
    if kind == "s3":
        service: S3Service = request.getfixturevalue("s3")
        options = {"remote": service.new_folder(), **service.options}
    lab = make_lab(**options)
    lab.partition = 0
    return make_checkpoint(lab)
