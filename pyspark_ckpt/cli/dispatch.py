"""How commands are found and run: names that are unknown, and errors that name options as a user spells them.

Messages of the package name arguments of Python functions in backquotes, as in "`parallelism` must be at least 1". A
user of a command has typed ``--parallelism``. They name options by their confs; a user has typed
``-o s3Endpoint=...``. All other text stays as it is: it may be a uid or a path.
"""

from __future__ import annotations

import difflib
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click
from typing_extensions import override

from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError, LifecycleError
from pyspark_ckpt.terminal import escape_controls

_ARGUMENT = re.compile(r"`([a-z_]+)`")


_WHOLE = 1000
"""More characters than a summary has."""


class CommandError(Exception):
    """A command has failed. ``lines``: what its user is told.

    ``exit_code``: 2 if the call was wrong, or came before the first batch; else 1.
    """

    def __init__(self, problem: CkptError, parameters: Sequence[click.Parameter] = ()) -> None:
        """Tell of ``problem``, in terms of the ``parameters`` of the command."""
        super().__init__(problem.message)
        told = [spell_options(text, parameters) for text in (problem.message, problem.hint) if text]
        self.lines = list(map(escape_controls, told))
        self.exit_code = 2 if isinstance(problem, (InvalidInputError, LifecycleError)) else 1


def spell_options(text: str, parameters: Sequence[click.Parameter]) -> str:
    """Return a message of a Python function with its arguments as the options of a command."""
    from pyspark_ckpt.state_store.options import PREFIX, table  # noqa: PLC0415 - takes long, and only errors need it

    spelled = {each.name: max(each.opts, key=len) for each in parameters if isinstance(each, click.Option)}
    text = _ARGUMENT.sub(lambda found: spelled.get(found[1], found[0]), text)
    return re.sub(rf"(?<![\w/.]){re.escape(PREFIX)}({'|'.join(table())})(?![\w/])", r"-o \1", text)


@contextmanager
def _stop_waiting_when_interrupted() -> Iterator[None]:
    """Let Ctrl-C also stop other threads that wait for a place: the command ends only after all threads."""
    from pyspark_ckpt.state_store.blobs.base.retries import stop_waiting  # noqa: PLC0415 - only a command needs it

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop_waiting()
        signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Command(click.Command):
    """A command whose errors name its options. Ctrl-C ends it even if a place does not answer."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _stop_waiting_when_interrupted():
                return super().invoke(ctx)
        except CkptError as problem:
            raise CommandError(problem, self.params) from problem


class Group(click.Group):
    """A group of commands. For an unknown name it suggests similar commands of any group."""

    command_class = Command
    group_class = type

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the whole first sentence of each command: click would cut it off at the end of the line."""
        shown = [(name, each) for name, each in sorted(self.commands.items()) if not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_WHOLE)) for name, each in shown])

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as problem:
            raise click.UsageError(_explain_unknown(ctx, problem.command_name), ctx) from problem


class Root(Group):
    """The group of all commands. An interrupt raises Abort."""

    group_class = Group  # type: ignore[assignment]  # declared as what it is in Group

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as problem:
            raise click.Abort from problem


def _explain_unknown(ctx: click.Context, name: str) -> str:
    root, here = ctx.find_root(), ctx.command_path
    known = dict(_list_commands(root.command, str(root.info_name)))
    own = [path for path in known if path.rpartition(" ")[0] == here]
    meant = (
        [path for path, each in known.items() if each == name]
        or [path for path in own if known[path] in difflib.get_close_matches(name, map(known.__getitem__, own))]
        or [path for path, each in known.items() if each in difflib.get_close_matches(name, known.values())]
    )
    told = f"{here!r} has no command {name!r}."
    if meant:
        return f"{told} Did you mean {' or '.join(map(repr, meant))}?"
    return f"{told} It has: {', '.join(known[path] for path in own)}."


def _list_commands(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Yield all commands and groups below one, with the words that call them and their own names."""
    for name, each in getattr(command, "commands", {}).items():
        yield f"{path} {name}", name
        yield from _list_commands(each, f"{path} {name}")
