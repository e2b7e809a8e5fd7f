"""The programs with timers in the docs: the same rows come to the same, however they are cut into batches."""

from __future__ import annotations

import importlib
import re
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS
from integration.operators.replay import Case, run, write_inputs
from integration.operators.sources import Source
from integration.sample import ALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Query

DOCS = Path(__file__).parents[2] / "docs"
START = datetime(2024, 3, 1, 8, tzinfo=timezone.utc)
DELAY = timedelta(minutes=10)
SEEDS = (1, pytest.param(2, marks=pytest.mark.matrix))


def _programs() -> dict[str, Any]:
    """What the page on keyed state defines of carts and of totals."""
    text = (DOCS / "keyed-state.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {"__name__": "page", "ckpt": ckpt, "np": np, "pa": pa, "pc": pc, "timedelta": timedelta}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if "Carts" in block or "class Totals" in block:
            exec(compile(block, "keyed-state.md", "exec"), found)  # noqa: S102 - what users copy is what is tested
    return found


def _rows(seed: int) -> list[tuple[str, str, datetime]]:
    """Items of users, with gaps about as long as a cart lasts, up to the delay out of order; the last one ends all."""
    random = Random(seed)
    rows, at = [], START
    for number in range(26):
        at += random.choice((timedelta(minutes=2), timedelta(minutes=14), timedelta(minutes=29, microseconds=7)))
        rows.append((random.choice("abc"), f"item {number}", at + timedelta(microseconds=random.randrange(1_000_000))))
        if number % 6 == 5:  # exactly as long as a cart lasts, and a microsecond less
            rows.append((rows[-1][0], f"after {number}", rows[-1][2] + timedelta(minutes=30)))
            rows.append((rows[-1][0], f"last {number}", rows[-1][2] + timedelta(minutes=30, microseconds=-1)))
            at = rows[-1][2]
    moved = sorted(rows, key=lambda row: row[2] + random.random() * (DELAY - timedelta(seconds=1)))
    return [*moved, ("z", "the end", at + timedelta(days=40))]


def carts_of(rows: Sequence[tuple[str, str, datetime]]) -> list[tuple[str, list[str], datetime]]:
    """What all cuts must come to."""
    found = []
    for user in sorted({user for user, _, _ in rows} - {"z"}):
        cart: list[tuple[datetime, str]] = []
        for at, item in [
            *sorted((at, item) for each, item, at in rows if each == user),
            (datetime.max.replace(tzinfo=timezone.utc), ""),
        ]:
            if cart and at - cart[-1][0] >= timedelta(minutes=30):
                found.append((user, [each for _, each in cart], cart[-1][0] + timedelta(minutes=30)))
                cart = []
            cart.append((at, item))
    return found


def _cuts(rows: Sequence[Any], seed: int) -> dict[str, list[tuple[Any, ...]]]:
    """The rows in one batch, in one batch each, and in batches of random sizes."""
    random = Random(seed)
    cuts: dict[str, list[int]] = {"one batch": [], "a row each": list(range(1, len(rows)))}
    for number in range(2 if ALL else 1):
        cuts[f"random {number}"] = sorted(random.sample(range(1, len(rows)), 5 + 3 * number))
    return {
        name: [tuple(rows[begin:end]) for begin, end in zip([0, *at], [*at, len(rows)], strict=True)]
        for name, at in cuts.items()
    }


def _play(spark: SparkSession, query: Query, schema: str, batches: Sequence[Any], folder: Path) -> list[Any]:
    """All rows that come out, sorted."""
    source = Source(schema, tuple(batches))
    case = Case(query, (source,), output_mode="update")
    write_inputs(case, folder, 0, len(batches))
    found: list[Any] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        found.extend(map(tuple, frame.collect()))

    run(OURS.session(spark), case, folder, collect)
    return sorted(found)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("program", ["Carts", "CartColumns"])
def test_carts_come_to_the_same_for_every_cut(program: str, seed: int, spark: SparkSession, tmp_path: Path) -> None:
    rows = _rows(seed)
    wanted = sorted((user, items, at.replace(tzinfo=None)) for user, items, at in carts_of(rows))
    assert len(wanted) > 8
    assert max(len(items) for _, items, _ in wanted) > 2
    output = "user string, items array<string>, at timestamp"

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        watched = frames[0].withWatermark("at", f"{DELAY.seconds} seconds")
        return ckpt.keyed(watched, "user", uid="carts").process(_programs()[program](), output)

    for name, batches in _cuts(rows, seed).items():
        assert _play(spark, query, "user string, item string, at timestamp", batches, tmp_path / name) == wanted, name


@pytest.mark.in_turn
def test_totals_come_to_the_same_for_every_cut_with_amounts_that_are_null(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(3)
    rows = [(random.choice(["a", "b", None]), random.choice([None, 1, -5, 1 << 60])) for _ in range(30)]
    wanted = {
        user: (len(own), sum(own)) for user in ("a", "b", None) if (own := [n or 0 for u, n in rows if u == user])
    }
    assert any(amount is None for _, amount in rows)

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        return ckpt.keyed(frames[0], "user", uid="it").process(_programs()["Totals"](), "user string, n long, sum long")

    for name, batches in _cuts(rows, 3).items():
        source = Source("user string, amount long", tuple(batches))
        case = Case(query, (source,), output_mode="update")
        write_inputs(case, tmp_path / name, 0, len(batches))
        found: list[Any] = []
        run(OURS.session(spark), case, tmp_path / name, lambda frame, _, to=found: to.extend(frame.collect()))  # type: ignore[misc]
        assert {user: (n, total) for user, n, total in found} == wanted, name


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
def test_groundings_come_to_the_same_for_every_cut(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    for name in ("flights", "groundings"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        spark.sparkContext.addPyFile(str(DOCS / "examples" / f"{name}.py"))
    example = importlib.import_module("groundings")
    days = timedelta(days=14) / timedelta(minutes=30)  # a day for about two minutes
    rows = [(user, START + (at - START) * days) for user, _, at in _rows(seed)]
    departures: dict[str, list[datetime]] = {}
    for user, at in sorted(rows):
        departures.setdefault(user, []).append(at)
    wanted = sorted(
        (user, at.replace(tzinfo=None))
        for user, of_user in departures.items()
        if user != "z"
        for at, after in zip(of_user, [*of_user[1:], datetime.max.replace(tzinfo=timezone.utc)], strict=True)
        if after - at >= timedelta(days=14)
    )
    assert len(wanted) > 5
    in_order = sorted(rows, key=lambda row: row[1])  # the example waits for an hour only
    for name, batches in _cuts(in_order, seed).items():
        found = _play(
            spark,
            lambda frames: example.query(frames[0]),
            "tailnum string, departure timestamp",
            batches,
            tmp_path / name,
        )
        assert found == wanted, name
