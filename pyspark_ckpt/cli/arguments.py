"""Arguments that several commands of the command line take, and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import Options, parse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-o KEY=VALUE``, which ``settings`` and ``options`` read."""
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        type=pair("KEY=VALUE"),
        help="an option such as s3Endpoint=http://host:9000; may be repeated",
    )


def settings(given: argparse.Namespace) -> dict[str, str]:
    """The options that are given, by their keys."""
    return pairs(given.option)


def options(given: argparse.Namespace) -> Options:
    """The options that are given, the others with their defaults. Raises InvalidInputError."""
    return parse(settings(given))


def pair(form: str) -> Callable[[str], str]:
    """The type of an argument of this form, which has an equals sign in it."""

    def check(text: str) -> str:
        if "=" not in text:
            raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
        return text

    return check


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """What follows the first equals sign of each text, by what precedes it.

    Raises InvalidInputError if one name is given two values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, value = text.split("=", 1)
        if found.setdefault(name, value) != value:
            raise InvalidInputError(f"{name} is given twice, as {found[name]!r} and {value!r}.", hint="Give it once.")
    return found
