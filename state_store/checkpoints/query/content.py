"""Damage in a query's files that a copy would reveal too late: when Spark does not start the query with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark_ckpt.state_store.checkpoints.query.carried_plans import CARRIED_FILE, require_last_carried
from pyspark_ckpt.state_store.checkpoints.query.entries import decode_json, is_log, split_lines
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY, SOURCES
from pyspark_ckpt.state_store.checkpoints.query.migrations import MIGRATIONS_FILE, require_migrations
from pyspark_ckpt.state_store.checkpoints.query.spark_files import check_form, choose_source_files

_SOURCES = f"{SOURCES}/"

ContentRewrite = Callable[[str, bytes, str], bytes]
"""Makes the new content of an object from its name, its content and its location."""


def check_content(name: str, content: bytes, where: str) -> bytes:
    """Return the same content. Raises FormatError if it is damaged."""
    if name == QUERY:
        decode_json(content, where)
    elif name == CARRIED_FILE:
        require_last_carried(content, where)
    elif is_log(name):
        decode_json(split_lines(content, where)[1], where)
    elif name == MIGRATIONS_FILE:
        require_migrations(content, where)
    return content


def checking_forms(names: Iterable[str], change: ContentRewrite = check_content) -> ContentRewrite:
    """Return ``change`` with a check of schemas, and of those files of sources among ``names`` that a start may read.

    The files of a savepoint are not checked so: they are proven to be what they were when it was taken.
    """
    needed = set(choose_source_files(name for name in names if name.startswith(_SOURCES)))

    def check(name: str, content: bytes, where: str) -> bytes:
        if name in needed or not name.startswith(_SOURCES):
            check_form(name, content, where)
        return change(name, content, where)

    return check
