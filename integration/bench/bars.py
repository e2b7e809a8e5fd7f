"""The bars: how much of another provider's time ours may take, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TypeAlias

from integration.bench.measure import Measured
from integration.bench.variants import (
    GROUPS,
    HDFS_BACKED,
    IN_MEMORY,
    MANY_TIMERS,
    MAP_IN_ARROW,
    NO_TIMERS,
    ONE_OPERATOR,
    ONE_PICKLE,
    OURS,
    PER_KEY,
    ROCKSDB,
    ROCKSDB_CHANGELOG,
    SEVERAL_STATES,
    SMALL_CACHE,
    SMALL_CACHE_FEW_KEYS,
    TRANSFORM,
    TRANSFORM_FRAMES,
    TRANSFORM_FRAMES_HERE,
    TRANSFORM_HERE,
    TWO_OPERATORS,
    UNCHANGED,
    UNCOMPRESSED_FEW_KEYS,
    VECTORISED,
    VECTORISED_FEW_KEYS,
    VECTORISED_UNCOMPRESSED,
    WITH_RULES,
    WITHOUT_RULES,
    WITHOUT_STATE,
)
from integration.bench.worker import Sample
from integration.turns import is_older

Figure: TypeAlias = Callable[[Sample], float]

ROCKSDB_MODES = (ROCKSDB.name, ROCKSDB_CHANGELOG.name)


def execution_ms(sample: Sample) -> float:
    """Running the batch: reading input, the operators, loading and committing the stores."""
    return sample.execution_ms


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs, pair by pair of the same round: the median, and the quartiles as its spread."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """The ratio of two series of the same rounds, of which one may be shorter."""
        pairs = [mine / other for mine, other in zip(ours, theirs, strict=False)]
        if len(pairs) < 2:
            return cls(pairs[0], pairs[0], pairs[0])
        low, _, high = quantiles(pairs, n=4, method="inclusive")
        return cls(median(pairs), low, high)

    def __str__(self) -> str:
        digits = 2 if self.middle >= 0.1 else 4
        return f"{self.middle:.{digits}f}x [{self.low:.{digits}f}..{self.high:.{digits}f}]"


@dataclass(frozen=True)
class Side:
    """One variant on one workload."""

    workload: str
    variant: str


@dataclass(frozen=True)
class Bar:
    """``ours`` takes at most ``limit`` times as long as the fastest of ``theirs``.

    ``restores``: in the first batch after the state was dropped, instead of in warm ones.
    """

    what: str
    ours: Side
    theirs: tuple[Side, ...]
    limit: float
    restores: bool = False


@dataclass(frozen=True)
class Verdict:
    """A bar and what was measured."""

    bar: Bar
    against: Side
    ratio: Ratio

    @property
    def passed(self) -> bool:
        """Whether the median of the pairs keeps the bar."""
        return self.ratio.middle <= self.bar.limit


def _against_rocksdb(workload: str, limit: float) -> Bar:
    theirs = tuple(Side(workload, mode) for mode in ROCKSDB_MODES)
    return Bar(f"{workload}: RocksDB in its better mode", Side(workload, OURS.name), theirs, limit)


def _in_memory(workload: str, limit: float, *, restores: bool = False) -> Bar:
    what = f"{workload}{', restored' if restores else ''}: in memory against HDFS-backed"
    theirs = (Side(workload, HDFS_BACKED.name),)
    return Bar(what, Side(workload, IN_MEMORY.name), theirs, limit, restores)


BARS: tuple[Bar, ...] = (
    _against_rocksdb("aggregation", 0.65),
    Bar(
        "aggregation: HDFS-backed",
        Side("aggregation", OURS.name),
        (Side("aggregation", HDFS_BACKED.name),),
        1.1,
    ),
    _in_memory("aggregation", 0.75),
    _in_memory("dedup-watermark", 0.9),
    _in_memory("sessions", 0.9),
    _in_memory("small-batch", 0.6),
    _in_memory("large-state", 0.3, restores=True),
    _against_rocksdb("large-state", 0.6),
    Bar(
        "the same change on ten times the state, near cache smaller than both",
        Side("large-state", SMALL_CACHE.name),
        (Side("large-state", SMALL_CACHE_FEW_KEYS.name),),
        1.3,
    ),
    _against_rocksdb("same-change", 1.0),
    _against_rocksdb("small-batch", 0.6),
    _against_rocksdb("dedup", 1.0),
    _against_rocksdb("dedup-watermark", 1.0),
    _against_rocksdb("sessions", 1.0),
    _against_rocksdb("join", 1.0),
    _against_rocksdb("partitions", 1.0),
    *(
        Bar(
            f"keyed: {ours.name} against {theirs.name}",
            Side("keyed", ours.name),
            (Side("keyed", theirs.name),),
            limit,
        )
        for ours, theirs, limit in (
            (VECTORISED, GROUPS, 1 / 80),
            (PER_KEY, GROUPS, 1 / 25),
            (UNCHANGED, GROUPS, 1 / 8),
            (VECTORISED, TRANSFORM, 1 / 30),
        )
    ),
    *(
        Bar(
            f"keyed: {ours.name} against mapInArrow without state",
            Side("keyed-plan", ours.name),
            (Side("keyed-plan", MAP_IN_ARROW.name),),
            limit,
        )
        for ours, limit in ((WITHOUT_STATE, 1.15), (VECTORISED, 1.45))
    ),
    *(
        Bar(
            f"{workload}: {ours.name} against {theirs.name}",
            Side(workload, ours.name),
            (Side(workload, theirs.name),),
            limit,
        )
        for workload, ours, theirs, limit in (
            ("stateful", TRANSFORM_HERE, TRANSFORM, 1 / 10),
            ("stateful", TRANSFORM_FRAMES_HERE, TRANSFORM_FRAMES, 1 / 15),
            ("stateful-large", TRANSFORM_HERE, TRANSFORM, 1 / 8),
        )
    ),
    *(
        Bar(
            f"keyed: {ours.name} against Spark's native aggregation on RocksDB in its better mode",
            Side("keyed-plan", ours.name),
            tuple(Side("keyed-plan", mode) for mode in ROCKSDB_MODES),
            limit,
        )
        for ours, limit in ((VECTORISED, 0.37), (PER_KEY, 0.85))
    ),
    Bar(
        "keyed, 200 partitions: vectorised against applyInPandasWithState",
        Side("keyed-partitions", VECTORISED.name),
        (Side("keyed-partitions", GROUPS.name),),
        0.3,
    ),
    Bar(
        "keyed, small batches: vectorised against the same without state",
        Side("keyed-small", VECTORISED.name),
        (Side("keyed-small", WITHOUT_STATE.name),),
        1.3,
    ),
    Bar(
        "keyed: value, list and map with TTL against one pickled state",
        Side("keyed-states", SEVERAL_STATES.name),
        (Side("keyed-states", ONE_PICKLE.name),),
        1 / 20,
    ),
    Bar(
        "keyed: two operators in a chain against one",
        Side("keyed-chain", TWO_OPERATORS.name),
        (Side("keyed-chain", ONE_OPERATOR.name),),
        2.2,
    ),
    Bar(
        "keyed: 10,000 broadcast rules against none",
        Side("broadcast", WITH_RULES.name),
        (Side("broadcast", WITHOUT_RULES.name),),
        1.05,
    ),
    Bar(
        "a million timers, none due, against none",
        Side("timers", MANY_TIMERS.name),
        (Side("timers", NO_TIMERS.name),),
        1.3,
    ),
    *(
        Bar(
            f"keyed: 5M keys against 50k keys, {drawn}, {files}",
            Side(workload, many.name),
            (Side(workload, few.name),),
            1.3,
        )
        for workload, drawn in (
            ("keyed-large", "drawn at random: 1.57 times the keys of a batch"),
            ("keyed-large-distinct", "as many in each batch"),
        )
        for many, few, files in (
            (VECTORISED, VECTORISED_FEW_KEYS, "as by default"),
            (VECTORISED_UNCOMPRESSED, UNCOMPRESSED_FEW_KEYS, "table files without compression"),
        )
    ),
)

BARS_OF_OLDER_RELEASES = tuple(_against_rocksdb(workload, 1.0) for workload in ("aggregation", "dedup", "join"))


def judge(results: Mapping[str, Measured], figure: Figure = execution_ms) -> list[Verdict]:
    """The verdict on every bar whose workloads were measured."""
    verdicts = []
    for bar in BARS_OF_OLDER_RELEASES if is_older() else BARS:
        if not {bar.ours.workload, *(side.workload for side in bar.theirs)} <= set(results):
            continue
        against, theirs = min(
            ((side, _series(results, side, bar, figure)) for side in bar.theirs), key=lambda each: median(each[1])
        )
        ratio = Ratio.of(_series(results, bar.ours, bar, figure), theirs)
        verdicts.append(Verdict(bar, against, ratio))
    return verdicts


def _series(results: Mapping[str, Measured], side: Side, bar: Bar, figure: Figure) -> list[float]:
    measured = results[side.workload]
    samples = measured.restored if bar.restores else measured.warm
    return [figure(sample) for sample in samples[side.variant]]
