"""The check that what differs among releases of PySpark is in one module."""

from __future__ import annotations

import ast

import pytest

from tests.checks import releases


@pytest.mark.parametrize(
    ("path", "source", "problem"),
    [
        ("operators/keyed.py", "from pyspark.version import __version__", "asks for the release"),
        ("operators/keyed.py", "import pyspark\nnew = pyspark.__version__ > '4'", "asks for the release"),
        ("operators/keyed.py", "if find_minor_release() == '4.0':\n    pass", "asks for the release"),
        ("pyspark_ckpt/savepoints.py", "old = session.version.startswith('3') == True", "asks for the release"),
        (
            "operators/keyed.py",
            "try:\n    from pyspark.sql import x\nexcept ImportError:\n    x = None",
            "may be missing",
        ),
        (
            "operators/keyed.py",
            "try:\n    import_module('pyspark.a')\nexcept (OSError, ImportError):\n    pass",
            "may be",
        ),
        (
            "operators/keyed.py",
            "def f():\n    from pyspark.sql.datasource import DataSource",
            "imports pyspark.sql.datasource",
        ),
        ("operators/groups/values.py", "from pyspark.sql.types import TimeType", "imports pyspark.sql.types.TimeType"),
        ("operators/types/ddl.py", "from pyspark.sql import types\nkind = types.VariantType", "VariantType"),
    ],
)
def test_what_depends_on_the_release_is_refused(path: str, source: str, problem: str) -> None:
    (found,) = releases.check_module(path, ast.parse(source))
    assert found.startswith(f"{path}:")
    assert problem in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "operators/keyed.py",
            "if TYPE_CHECKING:\n    from pyspark.sql.streaming.stateful_processor import StatefulProcessor",
        ),
        (
            "operators/stateful/handle.py",
            "from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle",
        ),
        ("pyspark_ckpt/state_source.py", "from pyspark.sql.datasource import DataSource"),
        ("operators/task/results.py", "from pyspark.sql.types import LongType\nnew = task.version == found.version"),
        ("state_store/extras.py", "try:\n    import boto3\nexcept ImportError:\n    raise"),
    ],
)
def test_what_every_release_has_is_left_alone(path: str, source: str) -> None:
    assert not list(releases.check_module(path, ast.parse(source)))
