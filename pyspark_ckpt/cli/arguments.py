"""Arguments that several commands share, and how they are parsed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import Options, parse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-o KEY=VALUE``; read it with ``settings`` or ``options``."""
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        type=pair("KEY=VALUE"),
        help="option of the store, such as s3Endpoint=http://host:9000; may be repeated",
    )


def settings(given: argparse.Namespace) -> dict[str, str]:
    """Return the given options by their keys."""
    return pairs(given.option)


def options(given: argparse.Namespace) -> Options:
    """Return the given options, and the others with their defaults. Raises InvalidInputError."""
    return parse(settings(given))


def pair(form: str) -> Callable[[str], str]:
    """Return the argparse type of an argument of ``form``, which contains an equals sign."""

    def check(text: str) -> str:
        if "=" not in text:
            raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
        return text

    return check


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Split each text at its first equals sign, and return the values by their names.

    Raises InvalidInputError (two values for one name).
    """
    found: dict[str, str] = {}
    for text in texts:
        name, value = text.split("=", 1)
        if found.setdefault(name, value) != value:
            raise InvalidInputError(f"{name} is given twice, as {found[name]!r} and {value!r}.", hint="Give it once.")
    return found
