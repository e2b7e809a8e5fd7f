"""Confs that Spark keeps for a query and that say how an operator lays out its state: they go with the operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.offline.composing.parts import PlacedOperator
from pyspark_ckpt.offline.writing.held_state import HeldState
from pyspark_ckpt.state_store.checkpoints.query.entries import find_confs
from pyspark_ckpt.state_store.errors import InvalidInputError


@dataclass(frozen=True)
class _LayoutConf:
    """A conf, what the names of its operators begin with, and what it is in a log that does not have it."""

    name: str
    operators: tuple[str, ...]
    default: str


_LAYOUT_CONFS = (
    _LayoutConf("spark.sql.streaming.aggregation.stateFormatVersion", ("stateStoreSave",), "1"),
    _LayoutConf("spark.sql.streaming.join.stateFormatVersion", ("symmetricHashJoin",), "1"),
    _LayoutConf(
        "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
        ("flatMapGroupsWithState", "applyInPandasWithState"),
        "1",
    ),
    _LayoutConf("spark.sql.dropDuplicates.deterministicKeyOrder.enabled", ("dedupe",), "false"),
    _LayoutConf("spark.sql.streaming.stateStore.encodingFormat", ("transformWithState",), "unsaferow"),
    _LayoutConf("spark.sql.streaming.statefulOperator.useStrictDistribution", ("",), "false"),
)
"""Source: OffsetSeqMetadata, and where Spark reads the confs."""


def choose_confs(base: HeldState, operators: Sequence[PlacedOperator]) -> dict[str, str]:
    """Return the confs of the new query that differ from those of ``base``, because of what its operators are.

    Raises InvalidInputError (two operators need other values of one conf), FormatError.
    """
    chosen: dict[str, str] = {}
    placed = [
        (each.former.operator, each.held) for each in operators if each.held is not None and each.former is not None
    ]
    confs = {id(held): _read_confs(held) for held in (base, *(held for _, held in placed))}
    for conf in _LAYOUT_CONFS:
        found: dict[str, str] = {}
        for operator, held in placed:
            if operator.name.startswith(conf.operators):
                value = str(confs[id(held)].get(conf.name, conf.default))
                found.setdefault(value, f"operator {operator.number} of {held.source.place.url}")
        if len(found) > 1:
            values = " and ".join(f"{value} for {operator}" for value, operator in found.items())
            raise InvalidInputError(
                f"{conf.name} is {values}: they lay out state differently, and a query has one value.",
                hint="They cannot be in one query. Start one of them without state, with the conf of the other.",
            )
        for value in found:
            if value != str(confs[id(base)].get(conf.name, conf.default)):
                chosen[conf.name] = value
    return chosen


def _read_confs(held: HeldState) -> dict[str, Any]:
    return find_confs(held.decode_entry("offsets"), held.find_entry("offsets")[1])
