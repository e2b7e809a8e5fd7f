"""The advice on the partitions of a query, as a result and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark_ckpt.offline.advice.progress_figures import BatchFigures, read_figures
from pyspark_ckpt.offline.advice.rules import Reason, Verdict, find_operator, judge
from pyspark_ckpt.offline.advice.state_figures import StateFigures, read_state
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.display import count_text, write_command
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.options import Options

_ANSWERS: Mapping[Verdict, str] = {
    "more": "More partitions would help",
    "fewer": "Fewer partitions would help",
    "stay": "Another number of partitions would not help",
    "unknown": "The figures do not suffice to say whether more partitions would help",
}


@dataclass(frozen=True)
class Advice:
    """Whether another number of partitions would help a query. ``reasons``: each with the figure that it judges.

    ``verdict``: "more", "fewer", "stay", or "unknown" if the figures do not suffice. ``recommended``: the number of
    partitions to have; None for no advice. ``states`` and ``batches``: the figures; the latter None if there are
    none. ``cores``: how many tasks run at a time; None if unknown.
    """

    query_id: str
    checkpoint: str
    verdict: Verdict
    partitions: int
    recommended: int | None
    reasons: tuple[Reason, ...]
    states: tuple[StateFigures, ...]
    batches: BatchFigures | None
    cores: int | None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the answer and its reasons, a line each."""
        answer = f"{_ANSWERS[self.verdict]}: the query has {count_text(self.partitions, 'partition')}"
        if self.recommended not in (None, self.partitions):
            answer += f", and {self.recommended} are recommended"
        found = [f"{answer}."]
        found += [f"- {reason.text}" for reason in sorted(self.reasons, key=lambda each: each.favours != self.verdict)]
        if self.verdict in ("more", "fewer") and self.recommended is not None:
            explain = write_command(
                "checkpoint", "rescale", self.checkpoint, "NEW_CHECKPOINT", "-n", str(self.recommended), "--dry-run"
            )
            found.append(f"To see what that would do: {explain}.")
        if self.verdict == "unknown":
            found.append("Give the progress of at least three batches with data, and the number of cores.")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON, as docs/command-line.md describes it."""
        batches = self.batches
        return {
            "query_id": self.query_id,
            "checkpoint": self.checkpoint,
            "verdict": self.verdict,
            "partitions": self.partitions,
            "recommended": self.recommended,
            "cores": self.cores,
            "reasons": [asdict(reason) for reason in self.reasons],
            "operators": [_describe(state, batches) for state in self.states],
            "batches": None if batches is None else batches.batches,
            "batch_ms": None if batches is None else batches.batch_ms,
            "run_ms": None if batches is None else batches.run_ms,
            "keeps_up": None if batches is None else batches.keeps_up,
        }


def _describe(state: StateFigures, batches: BatchFigures | None) -> dict[str, Any]:
    operator = find_operator(state, batches)
    return {
        "operator": state.number,
        "operator_name": state.operator_name,
        "partitions": state.partitions,
        "max_partitions": state.max_partitions,
        "rows": list(state.rows),
        "size_bytes": list(state.sizes_bytes),
        "task_ms": None if operator is None else operator.task_ms,
        "commit_ms": None if operator is None else operator.commit_ms,
        "restore_ms": None if operator is None else operator.forecast_ms,
    }


def advise_on(
    checkpoint: Checkpoint, progress: Iterable[Mapping[str, Any]], cores: int | None, options: Options
) -> Advice:
    """Judge the partitions of a query by its checkpoint and its progress, and ignore progress of other queries.

    Raises InvalidInputError (only progress of other queries, no state, a number of cores below 1),
    LifecycleError (no committed batch), NotFoundError, FormatError, StorageError.
    """
    if cores is not None and cores < 1:
        raise InvalidInputError(f"`cores` must be at least 1, got {cores}.")
    if not checkpoint.newest_version:
        raise LifecycleError(
            f"{checkpoint.place.url} has no committed batch yet.", hint="Ask again after some batches."
        )
    found = list(progress)
    own = [each for each in found if each["id"] == checkpoint.query_id]
    if found and not own:
        others = ", ".join(sorted({str(each["id"]) for each in found})[:3])
        raise InvalidInputError(
            f"The progress is of query {others}, but {checkpoint.place.url} is the checkpoint of query "
            f"{checkpoint.query_id}.",
            hint="Give the progress of this query, or the checkpoint of the other.",
        )
    checkpoint.refuse_other_provider()
    states = read_state(checkpoint)
    if not states:
        raise InvalidInputError(f"{checkpoint.place.url} has no state, so only its input has partitions.")
    batches = read_figures(own)
    judgement = judge(states, batches, cores, options.restore_target_s)
    return Advice(
        checkpoint.query_id,
        checkpoint.place.url,
        judgement.verdict,
        judgement.partitions,
        judgement.recommended,
        judgement.reasons,
        tuple(states),
        batches if batches is not None and batches.batches else None,
        cores,
    )
