"""A checkpoint that commands are tried on, and how they are called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_ckpt.cli.main import main
from tests.labs.lab import Lab

VERSIONS = 5
NOW = ("-o", "retentionGracePeriod=0")


def make_checkpoint(lab: Lab) -> Lab:
    """Make five versions of one store with snapshots of the second and the fourth, and Spark's own files."""
    lab.name_operator()
    lab.name_query()
    for batch, commit_id in enumerate(lab.grow_with_snapshots(VERSIONS)):
        log_batch(lab, batch, [commit_id])
    lab.server.settled()
    return lab


def log_batch(lab: Lab, batch: int, ids: list[str]) -> None:
    """Spark's entries of a batch, when it was planned and when it was committed."""
    planned = lab.checkpoint / "offsets" / str(batch)
    planned.parent.mkdir(exist_ok=True)
    planned.write_text('v1\n{"conf":{"spark.sql.shuffle.partitions":"1"}}\n0')
    lab.log_commit(batch, ids)


def arguments(lab: Lab) -> list[str]:
    """The checkpoint, and the options that reach it."""
    return [str(lab.checkpoint), *(f"--option={key}={value}" for key, value in lab.options.items())]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code of a command for checkpoints, and all that it prints."""
    code = main(["checkpoint", *arguments])
    written = capsys.readouterr()
    return code, written.out + written.err


def collected(lab: Lab, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    """What ``gc`` keeping one version below the newest says as JSON."""
    code, text = run(capsys, "gc", str(lab.checkpoint), "--keep", "1", "--json", *more)
    return code, json.loads(text)
