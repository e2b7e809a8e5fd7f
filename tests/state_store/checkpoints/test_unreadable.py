"""What could not be read is not called damaged: a full disk for temporary files, a file of another user."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from tests.faults.permissions import as_nobody
from tests.labs.saved_query import Query, written

MAX_BYTES = 2048


@pytest.fixture
def query(quick_path: Path) -> Query:
    made = written(quick_path / "query", 1, operators=(1,), batches=2)
    savepoints.savepoint(made.location, str(quick_path / "saved"))
    return made


@pytest.mark.in_turn
@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("command", ["checkpoint", "savepoint"])
def test_a_full_disk_is_no_damage(command: str, more: tuple[str, ...], query: Query, quick_path: Path) -> None:
    where = query.location if command == "checkpoint" else str(quick_path / "saved")

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_BYTES, MAX_BYTES))

    done = subprocess.run(
        [sys.executable, "-m", "pyspark_ckpt", command, "verify", where, *more],
        env={**os.environ, "TMPDIR": str(quick_path)},
        preexec_fn=fill,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stdout
    assert "File too large" in done.stderr


@pytest.mark.parametrize("command", ["checkpoint", "savepoint"])
def test_a_file_of_another_user_is_no_damage(
    command: str,
    query: Query,
    quick_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = Path(query.location if command == "checkpoint" else str(quick_path / "saved"))
    for path in where.rglob("*.delta"):
        path.chmod(0)
    everybodys = quick_path / "temporary"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(everybodys))
    with as_nobody(quick_path):
        assert main([command, "verify", str(where)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert ".delta" in told.err
    assert "Permission denied" in told.err
