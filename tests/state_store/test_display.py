"""What a user may have meant."""

from __future__ import annotations

import pytest

from pyspark_ckpt.state_store.display import suggest


@pytest.mark.parametrize(
    ("name", "meant"),
    [("memoryLimt", " Did you mean 'memoryLimit'?"), ("MEMORYLIMIT", " Did you mean 'memoryLimit'?"), ("xyz", "")],
)
def test_the_most_similar_name_is_suggested(name: str, meant: str) -> None:
    assert suggest(name, ["memoryLimit", "localDir"]) == meant


def test_nothing_is_suggested_where_nothing_is_known() -> None:
    assert suggest("name", []) == ""
