"""``python -m integration.demo``: replay, kill, rescale, restart, finish, compare, print.

The whole replay, its JVM and what that started, is killed with SIGKILL in the middle. The second run is the
same program, started again, with another number of partitions. Ends with 1 when one row of the result differs from
the batch computation.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import pyspark_ckpt
from integration.demo.flights import (
    MEASURES,
    STATISTICS,
    Statistic,
    airline_names,
    by_days,
    compute_in_one_go,
    read_flights,
    write_as_files,
)
from integration.demo.pauses import COLUMNS, NAME, batches_of, pauses_in_one_go

PARTITIONS = 2, 3
"""Before the kill, and after it."""
CONSOLE = Console(width=None if sys.stdout.isatty() else 110)


def main() -> int:
    """Run the demo; 0 when every row is right."""
    arguments = _arguments()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pyspark-ckpt-demo-") as name:
        folder = Path(name)
        flights = read_flights()
        parts = by_days(flights, arguments.days_per_file)
        write_as_files(parts, folder / "flights")
        has_keyed = arguments.provider == "ckpt"
        CONSOLE.print(
            f"{len(flights):,} flights of 2013 as a stream of {len(parts)} files, {len(STATISTICS)} running statistics "
            f"of it{' and a keyed operator' if has_keyed else ''}, state in {_provider_name(arguments.provider)}."
        )
        # Without rows, one batch more follows for the timers that the last rows have made due. A file may come with
        # the next one, after the kill: see batches_of.
        replay(folder, arguments.provider, (len(STATISTICS) + has_keyed) * len(parts) + has_keyed)
        wrong = 0
        for statistic in STATISTICS:
            wrong += compare(last_rows(folder, statistic), compute_in_one_go(flights, statistic), statistic)
        if has_keyed:
            pauses = pd.concat(pd.read_parquet(path) for path in sorted((folder / "results" / NAME).glob("*.parquet")))
            of_batches = batches_of([folder / each / NAME for each in ("before", "checkpoints")], parts)
            wrong += compare_pauses(pauses[COLUMNS], pauses_in_one_go(of_batches))
        print_airlines(last_rows(folder, STATISTICS[0]))
        print_worst_aircraft(last_rows(folder, STATISTICS[1]))
    CONSOLE.print(f"{time.monotonic() - began:.0f} s.")
    return 1 if wrong else 0


def replay(folder: Path, provider: str, total: int) -> None:
    """Run the stream to its end; the first process is killed half way."""
    done: set[tuple[str, int]] = set()
    columns = [TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=CONSOLE) as progress:
        bar = progress.add_task("replaying", total=total)
        with child(folder, provider) as process:
            for batch in batches(process, folder):
                done.add(batch)
                progress.update(bar, completed=len(done))
                if len(done) >= total // 2:
                    kill(process)
                    break
        before = len(done)
        progress.console.print(f"SIGKILL to the driver, its JVM and all they started, after {before} batches.")
        if provider == "ckpt":
            rescale(folder)
        progress.update(bar, description="restarted")
        with child(folder, provider, PARTITIONS[provider == "ckpt"]) as process:
            again = 0
            for batch in batches(process, folder):
                again += batch in done
                done.add(batch)
                progress.update(bar, completed=len(done))
            if process.wait() != 0:
                _give_up(folder)
            progress.update(bar, total=len(done))
    CONSOLE.print(f"Restarted from the checkpoints: {before - again} batches kept, {again} run again.")


def rescale(folder: Path) -> None:
    """Give every query the other number of partitions: a new checkpoint is made of the one that the kill has left."""
    old, new = PARTITIONS
    began = time.monotonic()
    (folder / "checkpoints").rename(folder / "before")
    rows = 0
    for checkpoint in sorted((folder / "before").iterdir()):
        done = pyspark_ckpt.restore(str(checkpoint), str(folder / "checkpoints" / checkpoint.name), parallelism=new)
        rows += sum(state.digest.rows for state in done.states)
    CONSOLE.print(
        f"Rescaled from {old} to {new} partitions in {time.monotonic() - began:.1f} s: "
        f"{rows:,} rows of state, their digests equal before and after."
    )


@contextmanager
def child(folder: Path, provider: str, partitions: int = PARTITIONS[0]) -> Iterator[subprocess.Popen[str]]:
    """The replay in a process group of its own, of which nothing is left afterwards."""
    command = [sys.executable, "-m", "integration.demo.replay", str(folder), provider, str(partitions)]
    with (folder / "replay.log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL the process and all that it started, and wait until they are gone."""
    while True:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            break
        process.poll()
        time.sleep(0.02)
    process.wait()


def batches(process: subprocess.Popen[str], folder: Path) -> Iterator[tuple[str, int]]:
    """Name every batch the replay has finished, as soon as it says so."""
    if process.stdout is None:
        _give_up(folder)
    for line in process.stdout:
        said = json.loads(line)
        yield said["statistic"], said["batch"]
    if process.wait() != 0:
        _give_up(folder)


def last_rows(folder: Path, statistic: Statistic) -> pd.DataFrame:
    """What the stream said last about each key, indexed by the keys."""
    changes = pd.concat(
        pd.read_parquet(path) for path in sorted((folder / "results" / statistic.name).glob("*.parquet"))
    )
    keys = list(statistic.keys)
    return changes.sort_values("batch").drop_duplicates(keys, keep="last").set_index(keys)[MEASURES]


def compare(streamed: pd.DataFrame, expected: pd.DataFrame, statistic: Statistic) -> int:
    """Compare every row and column; returns how many rows differ, and shows the first of them."""
    streamed, expected = _comparable(streamed), _comparable(expected)
    both = expected.merge(
        streamed, how="outer", on=list(statistic.keys), suffixes=("_batch", "_stream"), indicator=True
    )
    same = both["_merge"] == "both"
    for measure in MEASURES:
        left, right = both[f"{measure}_batch"], both[f"{measure}_stream"]
        same &= ((left == right) | (left.isna() & right.isna())).fillna(value=False)
    wrong = both[~same]
    if len(wrong):
        CONSOLE.print(
            f"[red]{statistic.title}: {len(wrong):,} of {len(both):,} rows differ from the batch computation."
        )
        CONSOLE.print(wrong.head().to_string())
    else:
        CONSOLE.print(f"[green]{statistic.title}: all {len(both):,} rows equal those of the batch computation.")
    return len(wrong)


def compare_pauses(streamed: pd.DataFrame, expected: pd.DataFrame) -> int:
    """Compare the rows of the keyed operator; returns how many differ, and shows the first of them."""
    times = {"since": "datetime64[us, UTC]"}
    both = expected.astype(times).merge(streamed.astype(times), how="outer", indicator=True)
    wrong = both[(both["_merge"] != "both") | both.duplicated(keep=False)]
    if len(wrong):
        CONSOLE.print(f"[red]pauses of aircraft: {len(wrong):,} of {len(both):,} rows differ from the plain loop.")
        CONSOLE.print(wrong.head().to_string())
    else:
        CONSOLE.print(
            f"[green]pauses of aircraft (keyed, with timers): all {len(both):,} rows equal those of a plain loop."
        )
    return len(wrong)


def print_airlines(rows: pd.DataFrame) -> None:
    """Print the table of all airlines, the busiest first."""
    names = airline_names()
    table = Table("airline", title="Departures from New York, 2013")
    for heading in ("flights", "cancelled", "late > 15 min", "mean delay", "worst delay"):
        table.add_column(heading, justify="right")
    for carrier, row in rows.sort_values("flights", ascending=False).iterrows():
        table.add_row(names[str(carrier)], *_cells(row))
    CONSOLE.print(table)


def print_worst_aircraft(rows: pd.DataFrame, least_flights: int = 100) -> None:
    """Print the five aircraft that kept their passengers waiting longest, by mean."""
    often = rows[rows["flights"] >= least_flights].reset_index()
    often["mean"] = often["delay_min"] / (often["flights"] - often["cancelled"])
    table = Table("aircraft", title=f"The latest aircraft, of those with {least_flights} flights or more")
    for heading in ("flights", "cancelled", "late > 15 min", "mean delay", "worst delay"):
        table.add_column(heading, justify="right")
    for _, row in often.dropna(subset=["tailnum"]).nlargest(5, "mean").iterrows():
        table.add_row(f"{row['tailnum']} ({row['carrier']})", *_cells(row))
    CONSOLE.print(table)


def _cells(row: pd.Series[int]) -> list[str]:
    departed = row["flights"] - row["cancelled"]
    return [
        f"{int(row['flights']):,}",
        f"{int(row['cancelled']):,}",
        f"{100 * row['late'] / departed:.1f} %",
        f"{row['delay_min'] / departed:.1f} min",
        f"{int(row['worst_min']):,} min",
    ]


def _comparable(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.astype(dict.fromkeys(MEASURES, "Int64")).reset_index()
    if "hour" in rows:
        rows["hour"] = pd.to_datetime(rows["hour"], utc=True).astype("datetime64[us, UTC]")
    return rows.fillna({"tailnum": "(unknown)"}) if "tailnum" in rows else rows


def _provider_name(provider: str) -> str:
    return "Spark's RocksDB provider" if provider == "spark" else "pyspark-ckpt"


def _give_up(folder: Path) -> NoReturn:
    lines = (folder / "replay.log").read_text().splitlines()
    causes = [line[:500] for line in lines if re.match(r"Caused by|[\w.]*(Error|Exception)\b", line)]
    CONSOLE.print("[red]The replay failed:")
    CONSOLE.print("\n".join(dict.fromkeys(causes or lines[-40:])), markup=False, soft_wrap=True)
    sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.demo", description=__doc__)
    parser.add_argument("--provider", choices=["ckpt", "spark"], default="ckpt", help="who keeps the state")
    parser.add_argument("--days-per-file", type=int, default=24, help="days of flights in one batch")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
