"""The part of the program that has rules for all keys, and a list of the rows that each partition has had."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Rule = tuple[int, int, int | None]
"""The order of a rule, its name, and its number; None removes it."""

RULES = "place bigint, name bigint, number bigint"


def draw_rules(seed: int, batches: int) -> tuple[tuple[Rule, ...], ...]:
    """The rules of each batch; in every third one, there are none."""
    draw = Random(f"rules {seed}")
    return tuple(
        tuple(
            (place, draw.randrange(6), None if draw.random() < 0.2 else draw.randrange(1000))
            for place in range(draw.randint(0, 5) if draw.random() < 0.66 else 0)
        )
        for _ in range(batches)
    )


def apply_rules(rules: dict[int, int], some: Sequence[Rule]) -> None:
    """Change the rules as the program does."""
    for _, name, number in sorted(some):
        if number is None:
            rules.pop(name, None)
        else:
            rules[name] = number


class KeyedRules:
    """The part of a KeyedProcessor."""

    rules = ckpt.BroadcastState("rules", "bigint", "bigint")
    given = ckpt.OperatorListState("given", "bigint")

    def process_broadcast(self, _ctx: ckpt.Context, rows: Sequence[Any]) -> None:
        """Change the rules."""
        for row in rows:
            self.rules.put(row.name, row.number)

    def tell_rules(self, seq: int) -> Iterator[tuple[str, Any]]:
        """Tell what the rules are, and note the row."""
        self.given.add(seq)
        yield f"{seq} rules", list(self.rules.items())
        if seq % 7 == 0:
            yield f"{seq} rule", (self.rules.get(seq % 6, -1), self.rules.contains(seq % 5), self.rules.is_empty())


class VectorRules:
    """The part of a VectorProcessor."""

    rules = ckpt.BroadcastState("rules", "bigint", "bigint")
    given = ckpt.OperatorListState("given", "bigint")

    def process_broadcast_batch(self, _ctx: ckpt.Context, batch: pa.Table) -> None:
        """Change the rules."""
        self.rules.put_entries(batch["name"], batch["number"])

    def tell_rules(self, seq: int) -> Iterator[tuple[str, Any]]:
        """Tell what the rules are, and note the row."""
        self.given.add_values(pa.array([seq]))
        yield f"{seq} rules", [tuple(row.values()) for row in self.rules.to_table().to_pylist()]
        if seq % 7 == 0:
            (number,) = self.rules.get_entries(pa.array([seq % 6])).to_pylist()
            has = self.rules.contains(seq % 5), self.rules.is_empty()
            yield f"{seq} rule", (-1 if number is None else number, *has)
