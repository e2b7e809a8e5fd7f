"""Temporary folders are made in TMPDIR, and nowhere else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.local.files import make_scratch_folder


def test_a_scratch_folder_is_in_tmpdir_also_when_python_would_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes another folder if it cannot write a file into TMPDIR, because that is full."""
    named, other = tmp_path / "named", tmp_path / "other"
    named.mkdir()
    other.mkdir()
    monkeypatch.setenv("TMPDIR", str(named))
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    assert make_scratch_folder().parent == named
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "named")
    assert make_scratch_folder().parent == named
