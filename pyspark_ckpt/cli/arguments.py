"""Arguments that several commands share, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

import click

from pyspark_ckpt.state_store.errors import InvalidInputError

F = TypeVar("F", bound=Callable[..., Any])
KEEP = 100
"""How many versions below the newest one ``gc`` keeps."""
TABLE_ROWS = 100
"""How many rows a table shows."""


def place(name: str) -> Callable[[F], F]:
    """Add the argument for a place: a path or a URI. The shell completes names of files."""
    return click.argument(name, type=click.Path(readable=False), metavar=name.upper())


def pairs(*names: str, form: str, what: str) -> Callable[[F], F]:
    """Add an option of the ``form`` KEY=VALUE that may be repeated; the command gets the values by their keys."""

    def split(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for text in texts:
            key, sign, value = text.partition("=")
            if not sign:
                raise click.BadParameter(f"{text!r} is not {form}")
            if found.setdefault(key, value) != value:
                raise InvalidInputError(f"{key} is given twice, as {found[key]!r} and {value!r}.", hint="Give it once.")
        return found

    return click.option(*names, multiple=True, metavar=form, callback=split, help=f"{what}; may be repeated.")


store_options = pairs(
    "-o", "--option", "settings", form="KEY=VALUE", what="Option of the store, such as s3Endpoint=http://host:9000"
)
"""Add ``-o KEY=VALUE``, which the command gets as ``settings``."""
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
version_option = click.option(
    "--version", type=int, metavar="N", help="Version of the state; default: the newest committed one."
)


def read_json(text: str) -> Any:  # noqa: ANN401 - JSON
    """Return a value given in JSON, with Decimal for floats, which would lose digits of a decimal."""
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError as problem:
        raise click.BadParameter(f"{text!r} is not JSON ({problem}); text needs quotes: '\"like this\"'") from problem
