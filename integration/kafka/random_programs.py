"""Programs drawn at random, which do the same in real-time mode as in a harness: each row has its own dice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyspark_ckpt as ckpt

ROWS = "user string, amount bigint, at timestamp"


class _Drawn(ckpt.KeyedProcessor):
    """What a row does depends on the program's seed, its amount, and the states of its key."""

    seed = 0

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            dice = random.Random(self.seed << 32 | row.amount)
            for name in dice.choices(list(_NAMES), k=dice.randrange(1, 5)):
                self._change(name, dice)
            yield key.user, f"{row.amount} {self._describe()}", row.amount

    def _change(self, name: str, dice: random.Random) -> None:
        state, number = getattr(self, name, None), dice.randrange(100)
        does = dice.random()
        if state is None:  # this program has no such state
            return
        if does < 0.15:
            state.clear()
        elif name == "value":
            state.update(number if state.value() is None else state.value() * 3 % 1009 + number)
        elif name == "list" and does < 0.3:
            state.update(sorted(state.get())[: number % 4])
        elif name == "map" and does < 0.3:
            state.remove(number % 5)
        elif name == "map":
            state.put(number % 5, state.get(number % 5, 0) + number)
        else:
            state.add(number)

    def _describe(self) -> str:
        states = {name: getattr(self, name, None) for name in _NAMES}
        return repr({name: _READS[name](state) for name, state in states.items() if state is not None})


_READS: Mapping[str, Callable[[Any], object]] = {
    "value": lambda state: state.value(),
    "list": lambda state: list(state.get()),
    "map": lambda state: dict(state.items()),
    "sum": lambda state: state.get(),
}
_NAMES: Mapping[str, Callable[[], Any]] = {
    "value": lambda: ckpt.ValueState("value", "bigint"),
    "list": lambda: ckpt.ListState("list", "bigint"),
    "map": lambda: ckpt.MapState("map", "int", "bigint"),
    "sum": lambda: ckpt.ReducingState("sum", "bigint", "sum"),
}


def draw(seed: int) -> ckpt.KeyedProcessor:
    """Return a program with one to four states."""
    dice = random.Random(seed)
    names = dice.sample(list(_NAMES), dice.randrange(1, len(_NAMES) + 1))
    processor: ckpt.KeyedProcessor = type(
        "Drawn", (_Drawn,), {"seed": seed, **{name: _NAMES[name]() for name in names}}
    )()
    return processor
