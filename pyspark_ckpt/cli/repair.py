"""``pyspark-ckpt checkpoint repair``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.repair.continuation import NONE_COMMITTED, Continuation, Obstacle
from pyspark_ckpt.state_store.repair.damaged_checkpoint import DamagedCheckpoint
from pyspark_ckpt.state_store.repair.diagnosis import Diagnosis, diagnose
from pyspark_ckpt.state_store.repair.removal import Repaired, choose_query_id, repair
from pyspark_ckpt.terminal import print_json, print_text

SHOWN = 20
"""How many lines of a kind are printed; JSON has all."""


def repair_checkpoint(
    checkpoint: str, settings: Mapping[str, str], *, query_id: str, apply: bool, quick: bool, as_json: bool
) -> int:
    """Say what is broken and what a repair would do, or do it. Return 1 while there is something to do, or to restore.

    Raises as ``repair``.
    """
    opened = DamagedCheckpoint(checkpoint, parse(settings))
    done = repair(opened, query_id, reads_all=not quick) if apply else _explain(opened, query_id, reads_all=not quick)
    is_right = done.diagnosis.is_healthy or done.is_applied
    if as_json:
        print_json({"checkpoint": opened.place.url, "applied": done.is_applied, **_describe(done)})
        return int(not is_right)
    _print(opened, done)
    return int(not is_right)


def _explain(checkpoint: DamagedCheckpoint, query_id: str, *, reads_all: bool) -> Repaired:
    found = diagnose(checkpoint, reads_all=reads_all)
    if query_id:
        choose_query_id(found, query_id)
    return Repaired(found)


def _describe(done: Repaired) -> dict[str, object]:
    found = done.diagnosis
    batch = None if found.continuation is None else found.continuation.batch
    return {
        "query_id": done.query_id or (found.query_ids[0] if len(found.query_ids) == 1 else None),
        "is_healthy": found.is_healthy,
        "problems": list(found.problems),
        "continues_after_batch": batch,
        "runs_again": [] if found.continuation is None else _list_planned(found.continuation),
        "cut_anew": [found.cut_anew[0], found.cut_anew[-1]] if found.cut_anew else [],
        "obstacles": [{"batch": each.batch, "reason": each.reason} for each in found.obstacles],
        "removed": list(found.removed),
        "lost": list(found.lost),
        "kept_in": done.kept_in or None,
    }


def _list_planned(continuation: Continuation) -> list[int]:
    return list(range(continuation.batch + 1, continuation.last_planned + 1))


def _print(checkpoint: DamagedCheckpoint, done: Repaired) -> None:
    found = done.diagnosis
    _print_list("damaged or missing", found.problems)
    _print_list("in the way of later batches", _shorten(found.obstacles))
    _print_list("to be restored from a backup", found.lost)
    if found.continuation is None or found.lost:
        print_text("The query cannot continue from these files. Restore them from a backup, or use a savepoint.")
        return
    print_text(_say_where(found))
    if found.is_healthy:
        print_text("There is nothing to repair: start the query.")
        return
    if found.lacks_id:
        _print_id(found, done)
    if found.removed and done.is_applied:
        print_text(f"Moved {count_text(len(found.removed), 'file')} to {checkpoint.place.url}/{done.kept_in}.")
    elif not done.is_applied:
        _print_list("would be moved to _ckpt/removed", found.removed)
        print_text("Nothing was changed. --apply does this; a driver that still runs the query then ends.")
    _print_sinks(found)


def _print_list(what: str, lines: Sequence[str]) -> None:
    if lines:
        more = [f"and {len(lines) - SHOWN:,} more: --json has all"] if len(lines) > SHOWN else []
        print_text("\n".join([f"{what}:", *(f"  {line}" for line in [*lines[:SHOWN], *more]), ""]))


def _shorten(obstacles: Sequence[Obstacle]) -> list[str]:
    """Return a line for each reason, with the batches that it blocks."""
    lines = []
    for reason, group in groupby(obstacles, lambda each: each.reason):
        batches = [each.batch for each in group]
        which = f"batch {batches[0]}" if len(batches) == 1 else f"batches {batches[-1]} to {batches[0]}"
        lines.append(f"{which}: {reason}")
    return lines


def _say_where(found: Diagnosis) -> str:
    continuation = found.continuation
    if continuation is None:
        raise InvalidInputError("no batch can be continued")
    if continuation.batch == NONE_COMMITTED:
        return "No batch is committed: the query begins with batch 0."
    planned = _list_planned(continuation)
    again = f" Batch {planned[0]} runs again with the rows that were planned for it." if planned else ""
    if len(planned) > 1:
        again = f" Batches {planned[0]} to {planned[-1]} run again with the rows that were planned for them."
    return f"The query can continue exactly once after batch {continuation.batch}.{again}"


def _print_id(found: Diagnosis, done: Repaired) -> None:
    if done.query_id:
        print_text(f"Wrote metadata with the query id {done.query_id}.")
    elif len(found.query_ids) == 1:
        print_text(f"metadata would get the query id {found.query_ids[0]}, as in the pointers to the state.")
    else:
        print_text(
            "The query id is lost: nothing in the checkpoint has it. Give --query-id with the id from a log of the "
            "driver, or `new` if no sink recognises the query by its id."
        )


def _print_sinks(found: Diagnosis) -> None:
    if not found.cut_anew:
        return
    first, last = found.cut_anew[0], found.cut_anew[-1]
    which = f"batch {first}" if first == last else f"batches {first} to {last}"
    print_text(
        f"\nThe plan of {which} is lost or no longer counts, so these numbers may get other rows. Before you start "
        f"the query, delete the rows of {which} from the sink, and the sink's record of these batches. Otherwise a "
        "sink that skips batches by their numbers loses rows, and any other sink gets rows twice."
    )
