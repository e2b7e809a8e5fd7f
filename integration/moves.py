"""How a query gets from one run of a random course to the next: with its checkpoint, or with one that is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ckpt import savepoints

if TYPE_CHECKING:
    from pathlib import Path

    from tests.life.course import Run


def make_checkpoint(run: Run, folder: Path, before: Path, checkpoint: Path) -> None:
    """Make the checkpoint of the run out of that of the run before."""
    if run.action == "restart":
        before.rename(checkpoint)
    elif run.action == "rescale":
        savepoints.restore(str(before), str(checkpoint), parallelism=run.partitions)
    elif run.action != "start":
        saved = folder / f"savepoint of {before.name}"
        savepoints.savepoint(str(before), str(saved), kind="canonical" if run.action == "canonical" else "native")
        savepoints.restore(str(saved), str(checkpoint), parallelism=run.partitions)
