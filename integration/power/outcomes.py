"""What the recorded query must have after a loss of power, and what it must come to when it goes on from there."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark_ckpt as ckpt
from integration.line_files import write_files
from integration.power.query import Settings, run
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 8
KEYS = 5

Counts = Sequence[Counter[str]]
"""How often each line has come after each batch, none first."""


def write_lines(folder: Path) -> Counts:
    """Write the files, in the order in which Spark reads them."""
    files = [[f"key {(number * each) % KEYS}" for each in range(1, 3 + number % 3)] for number in range(FILES)]
    write_files(folder, files)
    return list(accumulate(map(Counter, files), initial=Counter[str]()))


def require_whole(checkpoint: str, batches: int, counts: Counts) -> None:
    """Fail unless a query that starts here goes on after ``batches`` or more, with the right state."""
    committed = _count_committed(checkpoint)
    assert committed >= batches, f"{batches} batches were acknowledged, {committed} are committed"
    if not any(blob.name == "metadata" for blob in place_at(checkpoint).list(prefix="metadata")):
        assert committed == 0  # a query begins anew, as it did
        return
    command("checkpoint", "verify", checkpoint)
    if committed:
        assert _read_state(checkpoint) == dict(counts[committed])


def go_on(spark: SparkSession, settings: Settings, counts: Counts) -> None:
    """Run the query to its end. Fail unless its state is right, and its sink has each batch that was not committed."""
    committed, sink = _count_committed(settings.checkpoint), Path(settings.sink)
    sink.mkdir()
    run(spark.newSession(), settings)
    assert _read_state(settings.checkpoint) == dict(counts[FILES])
    shown = dict(counts[committed])
    for batch in sorted(int(each.name) for each in sink.iterdir()):
        assert batch >= committed
        shown |= json.loads((sink / str(batch)).read_text(encoding="utf-8"))
    assert shown == dict(counts[FILES])
    shutil.rmtree(sink)


def _count_committed(checkpoint: str) -> int:
    return max(list_batches(place_at(checkpoint), "commits"), default=-1) + 1


def _read_state(checkpoint: str) -> dict[str, int]:
    with ckpt.reading.open_state(checkpoint) as state:
        rows = state.to_arrow()
    keys = rows.column("key").combine_chunks().field("value").to_pylist()
    return dict(zip(keys, rows.column("value").combine_chunks().field("count").to_pylist(), strict=True))


def call(*arguments: str) -> tuple[int, str]:
    """Run our command; return its code and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(list(arguments))
    return code, said.getvalue()


def command(*arguments: str) -> None:
    """Run our command. Fail if it does."""
    code, said = call(*arguments)
    assert code == 0, f"{' '.join(arguments)}: {said}"
