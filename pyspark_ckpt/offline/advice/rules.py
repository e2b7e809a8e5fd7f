"""The rules that judge whether more partitions would help. docs/operators.md explains each of them to users.

There is no model behind them: each compares one figure with one threshold, and says so in its reason. Rules look at the
operator whose state takes the most time, or has the most bytes, because all operators of a query have one number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyspark_ckpt.offline.advice.progress_figures import BatchFigures, OperatorFigures
from pyspark_ckpt.offline.advice.state_figures import MIN_ROWS, StateFigures
from pyspark_ckpt.state_store.display import count_text, size_text

MIN_BATCHES = 3
"""With fewer warm batches, the figures of time say nothing."""
MIN_STATE_SHARE = 0.3
"""Below this share of a batch, work on state does not make it slow."""
MAX_PARTITION_BYTES = 4 << 30
"""Stored bytes of a partition: from here on, restores and compactions of one partition take minutes."""
MAX_PARTITIONS_PER_CORE = 8
"""With more partitions a core, the fixed cost of a task and of its commit is paid too often."""
MIN_TASK_MS = 20.0
"""A partition with less work on state than this costs more than it contributes."""

_KEEPS_UP = {
    True: "The query keeps up with its input: it waits between batches.",
    False: "The query is behind: batches run without a pause, and the sources have more rows than a batch takes.",
    None: "It is unknown whether the query keeps up: it reports no pause between its batches.",
}

Verdict: TypeAlias = Literal["more", "fewer", "stay", "unknown"]


@dataclass(frozen=True)
class Reason:
    """A figure that was judged. ``favours``: what it speaks for; empty if it only informs."""

    favours: Verdict | Literal[""]
    text: str


@dataclass(frozen=True)
class Judgement:
    """The verdict, the number of partitions that is recommended (None: none can be), and the reasons for both."""

    verdict: Verdict
    partitions: int
    recommended: int | None
    reasons: tuple[Reason, ...]


def judge(
    states: Sequence[StateFigures], batches: BatchFigures | None, cores: int | None, restore_target_s: float
) -> Judgement:
    """Judge by the figures of the state, and by those of batches and the number of cores as far as they are known."""
    splittable = [state for state in states if not state.keeps_one]
    if not splittable:
        text = "No operator of the query has state that can be spread: each needs all rows in one place."
        return Judgement("stay", 1, None, (Reason("stay", text),))
    most = max(splittable, key=lambda state: (_find_task_ms(state, batches), sum(state.sizes_bytes)))
    partitions = most.partitions
    reasons = [
        *_judge_time(most, batches, cores),
        *_judge_skew(most),
        *_judge_size(most),
        *_judge_restore(batches, restore_target_s),
    ]
    favoured = {reason.favours for reason in reasons}
    verdict: Verdict = next((each for each in ("more", "fewer", "stay") if each in favoured), "unknown")
    recommended = _recommend(verdict, most, splittable, cores)
    if verdict == "more" and recommended is None:
        limit = min(state.max_partitions or partitions for state in splittable)
        reasons.append(Reason("stay", f"The keyed operator cannot have more than {limit} (max_parallelism)."))
        verdict = "stay"
    return Judgement(verdict, partitions, recommended, tuple(reasons))


def _find_task_ms(state: StateFigures, batches: BatchFigures | None) -> float:
    operator = find_operator(state, batches)
    return 0.0 if operator is None else operator.task_ms


def find_operator(state: StateFigures, batches: BatchFigures | None) -> OperatorFigures | None:
    """Return the figures of an operator. Spark lists operators in the order of their numbers."""
    operators = () if batches is None else batches.operators
    return next((each for each in operators if each.number == state.number), None)


def _judge_time(state: StateFigures, batches: BatchFigures | None, cores: int | None) -> Iterator[Reason]:
    operator = find_operator(state, batches)
    if batches is None:
        yield Reason("", "The progress has no batch with data, so it is unknown where the time goes.")
        return
    if batches.batches < MIN_BATCHES or operator is None:
        text = (
            f"The progress has too few batches with data that count: {batches.batches}. Times are judged from "
            f"{MIN_BATCHES} on."
        )
        if batches.left_out:
            text += (
                f" {batches.left_out:,} more do not count: the first batch of a run, and batches that restored stores "
                "or ran with another number of partitions."
            )
        yield Reason("", text)
        return
    if operator.partitions not in (0, state.partitions):
        yield Reason(
            "",
            f"The progress has {state.name} with {count_text(operator.partitions, 'partition')}, but the checkpoint "
            f"has {state.partitions}: give progress from after the rescaling.",
        )
        return
    if cores is None:
        yield Reason("", "Times cannot be judged without the number of cores: give it.")
        return
    partitions = state.partitions
    at_once = min(partitions, cores)
    state_ms = operator.task_ms / at_once
    alone_ms = operator.task_ms * state.largest_share if state.is_skewed else 0.0
    share = min(1.0, state_ms / batches.run_ms) if batches.run_ms else 0.0
    what = (
        f"The tasks of {state.name} work on state for {operator.task_ms:,.0f} ms in a batch, {at_once} at a time: "
        f"{share:.0%} of the {batches.run_ms:,.0f} ms that the batch runs"
    )
    task_ms = operator.task_ms / partitions
    if share < MIN_STATE_SHARE:
        yield Reason(
            "stay", f"{what}. Below {MIN_STATE_SHARE:.0%}, the time goes elsewhere: sources, other stages or the sink."
        )
    elif partitions < cores and alone_ms > state_ms:
        yield Reason(
            "stay",
            f"{what}. The largest partition has {state.largest_share:.0%} of the rows, and takes about "
            f"{alone_ms:,.0f} ms alone, if its rows take as long as others: more partitions help only if these are "
            "many keys.",
        )
    elif partitions < cores:
        after = max(operator.task_ms / cores, alone_ms)
        yield Reason(
            "more",
            f"{what}. {cores - partitions} of {cores} cores have none of it. With a partition for each core it would "
            f"take about {after:,.0f} ms instead of {state_ms:,.0f} ms.",
        )
    else:
        yield Reason(
            "stay", f"{what}. All {cores} cores have a part of it: more partitions would share the same cores."
        )
    if partitions > MAX_PARTITIONS_PER_CORE * cores and task_ms < MIN_TASK_MS:
        yield Reason(
            "fewer",
            f"There are {partitions / cores:.0f} partitions for each core, and one works on state for "
            f"{task_ms:.1f} ms in a batch: below {MIN_TASK_MS:.0f} ms, its task and its commit cost more.",
        )
    yield Reason("", _KEEPS_UP[batches.keeps_up])


def _judge_skew(state: StateFigures) -> Iterator[Reason]:
    if state.partitions == 1:
        return
    text = f"The largest partition of {state.name} has {state.skew:.2f} times the mean of the rows"
    if sum(state.rows) < MIN_ROWS * state.partitions:
        total = count_text(sum(state.rows), "row")
        yield Reason("", f"{state.name} has {total} in {state.partitions} partitions: too few to judge their spread.")
    elif not state.is_skewed:
        yield Reason("", f"{text}: rows are spread evenly.")
    else:
        largest = max(range(state.partitions), key=lambda number: state.rows[number])
        yield Reason(
            "stay",
            f"{text} (partition {largest}, {state.rows[largest]:,}). A key with many rows stays in one partition, "
            "whatever their number: look for it there.",
        )


def _judge_size(state: StateFigures) -> Iterator[Reason]:
    largest = max(state.sizes_bytes)
    text = f"The largest partition of {state.name} has {size_text(largest)} of stored objects"
    if largest > MAX_PARTITION_BYTES:
        yield Reason("more", f"{text}, more than {size_text(MAX_PARTITION_BYTES)}: restoring it takes long.")
    else:
        yield Reason("", f"{text}.")


def _judge_restore(batches: BatchFigures | None, target_s: float) -> Iterator[Reason]:
    forecasts = (
        [] if batches is None else [each.forecast_ms for each in batches.operators if each.forecast_ms is not None]
    )
    if not forecasts:
        return
    longest_s = max(forecasts) / 1000
    text = f"The longest restore of a store is expected to take {longest_s:.1f} s, and restoreTarget is {target_s:g} s"
    if longest_s > target_s:
        yield Reason("more", f"{text}: smaller partitions are restored sooner, and more of them at the same time.")
    else:
        yield Reason("", f"{text}.")


def _recommend(verdict: Verdict, state: StateFigures, states: Sequence[StateFigures], cores: int | None) -> int | None:
    """Return the number of partitions: a multiple or a divisor of the present one, to which state moves quickly.

    It is no multiple if a keyed operator can only have fewer.
    """
    partitions = state.partitions
    if verdict == "fewer" and cores is not None:
        return next((partitions // by for by in range(partitions, 1, -1) if _divides(by, partitions, cores)), None)
    if verdict != "more":
        return partitions if verdict == "stay" else None
    wanted = max(2 * partitions, cores or 0)
    multiple = partitions * -(-wanted // partitions)
    limits = [each.max_partitions for each in states if each.max_partitions is not None]
    most = min(limits, default=multiple)
    multiple = min(multiple, most)
    return multiple if multiple > partitions else None


def _divides(by: int, partitions: int, cores: int) -> bool:
    return partitions % by == 0 and partitions // by >= 2 * cores
