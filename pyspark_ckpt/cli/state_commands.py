"""The commands that read states: ``pyspark-ckpt state ...``. What they do is imported when they run."""

from __future__ import annotations

from typing import Any

import click

from pyspark_ckpt.cli.arguments import TABLE_ROWS, place, read_json, store_options, version_option
from pyspark_ckpt.cli.dispatch import Group


@click.group(cls=Group)
def state() -> None:
    """Read the state in a checkpoint or a savepoint."""


def _which_state(command: Any) -> Any:  # noqa: ANN401 - a command in the making
    """Add the arguments that select one of the states of a checkpoint, and how its rows are printed."""
    for decorate in (
        click.option(
            "--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", help="Default: table."
        ),
        click.option("--state", metavar="NAME", help="Name of the state; not needed if there is only one."),
        click.option("--store", metavar="NAME", help="Name of a store of a stream-stream join."),
        click.option("--operator", type=int, metavar="N", help="Number of an operator; see checkpoint inspect."),
        click.option("--uid", metavar="UID", help="Uid of a keyed operator."),
    ):
        command = decorate(command)
    return command


def _selection(command: Any) -> Any:  # noqa: ANN401 - a command in the making
    """Add the arguments that select a state of one version."""
    for decorate in (
        click.option("--without-expired", is_flag=True, help="Leave out rows past their time to live."),
        version_option,
        _which_state,
        store_options,
        place("checkpoint"),
    ):
        command = decorate(command)
    return command


LIMIT = click.option(
    "--limit", type=click.IntRange(min=0), metavar="ROWS", help=f"Default: all; {TABLE_ROWS} in a table."
)


@state.command
@_selection
@LIMIT
def read(form: str, limit: int | None, **selection: Any) -> int:  # noqa: ANN401 - see _selection
    """Show the rows of a state."""
    from pyspark_ckpt.cli import states

    return states.read(states.open_selected(**selection), form, limit)


@state.command
@_selection
def count(form: str, **selection: Any) -> int:  # noqa: ANN401 - see _selection
    """Count the rows of a state. They are values, elements of lists, entries of maps, or timers."""
    from pyspark_ckpt.cli import states

    return states.count(states.open_selected(**selection), form)


@state.command("diff")
@place("a")
@place("b")
@click.option(
    "--version-a", type=int, metavar="N", help="Version of the state in A; default: the newest committed one."
)
@click.option("--version-b", type=int, metavar="N", help="The same in B.")
@_which_state
@LIMIT
@store_options
def compare(form: str, limit: int | None, **selection: Any) -> int:  # noqa: ANN401 - see _selection
    """Show the rows of a state that differ between A and B; exit code 1 if there are any."""
    from pyspark_ckpt.cli import states

    return states.compare(form, limit, **selection)


@state.command
@place("checkpoint")
@click.option(
    "--first-batch", type=click.IntRange(min=0), metavar="N", help="Default: the oldest whose changes are stored."
)
@click.option("--last-batch", type=click.IntRange(min=0), metavar="N", help="Default: the last committed one.")
@_which_state
@LIMIT
@store_options
def changes(form: str, limit: int | None, **selection: Any) -> int:  # noqa: ANN401 - see _selection
    """Show what each batch did to the rows of a state."""
    from pyspark_ckpt.cli import states

    return states.changes(form, limit, **selection)


@state.command
@_selection
@click.option("--key", required=True, type=read_json, metavar="JSON", help="A value, or an array or object of columns.")
@LIMIT
def get(form: str, limit: int | None, key: Any, **selection: Any) -> int:  # noqa: ANN401 - a value of JSON; see _selection
    """Show the rows of one key. It fetches only files that may have the key."""
    from pyspark_ckpt.cli import states

    return states.get(states.open_selected(**selection), key, form, limit)
