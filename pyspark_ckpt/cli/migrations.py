"""``pyspark-ckpt savepoint migrate``: the migrations of a program, made or only tried."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_ckpt import writing
from pyspark_ckpt.cli import NAME
from pyspark_ckpt.cli.states import print_rows, read_rows
from pyspark_ckpt.cli.streams import print_to_stderr
from pyspark_ckpt.offline.reading.sources import state_at
from pyspark_ckpt.offline.writing.drafts.changes import Migration
from pyspark_ckpt.offline.writing.explanation import ExplainedChanges
from pyspark_ckpt.offline.writing.functions.sent_function import FunctionFailedError
from pyspark_ckpt.state_store.checkpoints.query.migrations import read_migrations
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.savepoint import open_target
from pyspark_ckpt.terminal import escape_controls, print_json, print_notice, print_table, print_text

_FORM = "Give MODULE:NAME, such as visits.migrations:MIGRATIONS: the name of a list of pyspark_ckpt.writing.Migration."


def migrate(
    savepoint: str,
    target: str,
    settings: Mapping[str, str],
    migrations: str,
    samples: int,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Write a savepoint with the migrations that the source has not had; with ``dry_run``, tell what they would do.

    ``migrations``: the name of the list, as MODULE:NAME.
    """
    try:
        with print_to_stderr():
            listed = load_migrations(migrations)
            if dry_run:
                told = writing.dry_run(savepoint, listed, samples=samples, options=settings)
            else:
                before = {each.name for each in read_migrations(state_at(savepoint, parse(settings)).place)}
                info = writing.write_state(savepoint, target, listed, options=settings)
    except FunctionFailedError as problem:
        for line in f"{NAME}: {problem.message}\n{problem.hint}".splitlines():
            print_notice(line)
        return 1
    if dry_run:
        return print_json(_describe(savepoint, told)) if as_json else _print(savepoint, told)
    place = open_target(target, parse(settings))
    made = [each for each in read_migrations(place) if each.name not in before]
    if as_json:
        return print_json(
            {
                "savepoint": target,
                "place": place.url,
                "version": info.version,
                "partitions": info.partitions,
                "migrations": [{"name": each.name, "changes": list(each.changes)} for each in made],
            }
        )
    print_table(("migration", "changes"), [(each.name, "; ".join(each.changes)) for each in made])
    print_text(f"{count_text(len(made), 'migration')} applied, savepoint {escape_controls(target)} written")
    return 0


def load_migrations(named: str) -> list[Migration]:
    """Return the list of migrations with a name such as ``visits.migrations:MIGRATIONS``.

    Modules are found in the current folder, too, as by ``python -m``. Raises InvalidInputError (there is no such list),
    and any error of the module.
    """
    module, _, name = named.partition(":")
    if not name.isidentifier() or not all(each.isidentifier() for each in module.split(".")):
        raise InvalidInputError(f"`migrations` is {named!r}, which does not name a list in a module.", hint=_FORM)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except SystemExit as problem:
        raise InvalidInputError(
            f"`migrations` is {named!r}, and the module {module!r} ends the program: it calls sys.exit().",
            hint="Give a module that only defines the list.",
        ) from problem
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module}.".startswith(f"{problem.name}."):
            raise  # of a module that the named one imports
        raise InvalidInputError(
            f"`migrations` is {named!r}, and there is no module {problem.name!r} in {here} or on Python's path.",
            hint="Call the command in the folder above the module, or set PYTHONPATH.",
        ) from problem
    if not hasattr(found, name):
        raise InvalidInputError(f"`migrations` is {named!r}, and {module!r} has no {name!r}.", hint=_FORM)
    listed = getattr(found, name)
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, Migration) for each in listed):
        raise InvalidInputError(
            f"`migrations` is {named!r}, which is {repr(listed)[:200]} of type {type(listed).__name__}.", hint=_FORM
        )
    return list(listed)


def _print(savepoint: str, told: ExplainedChanges) -> int:
    for name in told.migrations:
        print_text(f"migration {escape_controls(name)}")
    print_table(
        ("uid", "state", "formerly", "outcome", "rows before", "rows after"),
        [
            (each.uid, each.name, each.former or "", each.outcome, each.rows_before, each.rows_after)
            for each in told.states
        ],
    )
    for each in told.states:
        if each.sample is not None and len(each.sample):
            print_text(f"\n{escape_controls(f'{each.uid}/{each.name}')}, some of its rows afterwards")
            print_rows(each.sample.column_names, _read_sample(each.sample), "table", None)
    number = count_text(len(told.migrations), "migration")
    print_text(f"\n{number} to apply to {escape_controls(savepoint)}; nothing was written")
    return 0


def _describe(savepoint: str, told: ExplainedChanges) -> dict[str, Any]:
    """Return what migrations would do, as JSON."""
    return {
        "savepoint": savepoint,
        "migrations": list(told.migrations),
        "states": [
            {
                "uid": each.uid,
                "state": each.name,
                "former": each.former,
                "outcome": each.outcome,
                "rows_before": each.rows_before,
                "rows_after": each.rows_after,
                "sample": []
                if each.sample is None
                else [dict(zip(each.sample.column_names, row, strict=True)) for row in _read_sample(each.sample)],
            }
            for each in told.states
        ],
    }


def _read_sample(sample: pa.Table) -> Iterator[list[Any]]:
    return (row for batch in sample.to_batches() for row in read_rows(batch))
