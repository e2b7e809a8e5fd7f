"""Arguments that several commands share, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import wraps
from typing import Any, Literal, TypeVar, cast

import click
from typing_extensions import override

F = TypeVar("F", bound=Callable[..., Any])
DryRun = Literal["counted", "estimated"]
"""How a dry run of a restore finds the row counts of new partitions."""
KEEP = 100
"""How many versions ``gc`` keeps below the newest one, which it keeps as well."""
TABLE_ROWS = 100
"""How many rows a table shows."""


class Place(click.Path):
    """A path or a URI. The shell completes names of files."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if value else self.fail("give a path or a URL", param, ctx)


def place(name: str) -> Callable[[F], F]:
    """Add the argument for a place."""
    return click.argument(name, type=Place(readable=False), metavar=name.upper())


def pairs(*names: str, form: str, what: str, check: Callable[[str], None] = lambda _key: None) -> Callable[[F], F]:
    """Add an option of the ``form`` KEY=VALUE that may be repeated; the command gets the values by their keys.

    ``check`` raises BadParameter for a key that is unknown.
    """

    def split(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for text in texts:
            key, sign, value = text.partition("=")
            if not sign:
                raise click.BadParameter(f"{text!r} is not {form}")
            check(key)
            if found.setdefault(key, value) != value:
                raise click.BadParameter(f"{key} is given twice, as {found[key]!r} and {value!r}: give it once")
        return found

    return click.option(*names, multiple=True, metavar=form, callback=split, help=f"{what}; may be repeated.")


def _check_option(key: str) -> None:
    from pyspark_ckpt.state_store.display import suggest  # noqa: PLC0415 - takes long, see the module main
    from pyspark_ckpt.state_store.options import PREFIX, table  # noqa: PLC0415

    name = key.removeprefix(PREFIX)
    if name not in table():
        known = f"Known options: {', '.join(table())}."
        raise click.BadParameter(f"there is no option {name!r}.{suggest(name, table())} {known}")


store_options = pairs(
    "-o",
    "--option",
    "settings",
    form="KEY=VALUE",
    what="Option of the store, such as s3Endpoint=http://host:9000",
    check=_check_option,
)
"""Add ``-o KEY=VALUE``, which the command gets as ``settings``."""
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
version_option = click.option(
    "--version", type=int, metavar="N", help="Version of the state; default: the newest committed one."
)


def dry_run_options(command: F) -> F:
    """Add ``--dry-run`` and ``--quick``. The command gets one argument for both: ``dry_run``, a ``DryRun`` or None."""

    @wraps(command)
    def choose(*, dry_run: bool, quick: bool, **given: Any) -> Any:  # noqa: ANN401 - those of the command
        if quick and not dry_run:
            raise click.UsageError("--quick works only with --dry-run: give both, or neither.")
        chosen: DryRun | None = None
        if dry_run:
            chosen = "estimated" if quick else "counted"
        return command(dry_run=chosen, **given)

    quick = click.option("--quick", is_flag=True, help="With --dry-run: estimate row counts, read no rows.")
    dry = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
    return dry(quick(cast("F", choose)))


def names(*option: str, what: str) -> Callable[[F], F]:
    """Add a repeatable option for comma-separated names. The command gets None if it is not given."""

    def split(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> list[str] | None:
        found = [name for text in texts for name in text.split(",")]
        if not all(found):
            raise click.BadParameter(f"{','.join(texts)!r} has an empty name; give NAME,NAME")
        return found or None

    return click.option(*option, multiple=True, metavar="NAME,...", callback=split, help=f"{what}; may be repeated.")


def read_json(text: str) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON, with Decimal in place of floats, which would lose digits."""
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError as problem:
        raise click.BadParameter(f"{text!r} is not JSON ({problem}); text needs quotes: '\"like this\"'") from problem
