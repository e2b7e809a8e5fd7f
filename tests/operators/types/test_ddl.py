"""Names of types that are read without Spark: what is wrong with one is said of the word that is wrong."""

from __future__ import annotations

import pytest

from pyspark_ckpt.operators.types.ddl import read_type


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("bigit", r"^'bigit' is not a type\. Did you mean 'bigint'\?$"),
        ("strin not null", r"^'not' is not a type"),
        ("n bigit", r"^'bigit' is not a type\. Did you mean 'bigint'\?$"),
        ("n:bigit", r"^'bigit' is not a type\. Did you mean 'bigint'\?$"),
        ("`n m`bigit", r"^'bigit' is not a type\. Did you mean 'bigint'\?$"),
        ("n string, m bigit", r"^'bigit' is not a type"),
        ("arry<string>", r"^'arry' is not a type\. Did you mean 'array'\?$"),
        ("array<bigit>", r"^'bigit' is not a type"),
        ("struct<n bigit>", r"^'bigit' is not a type"),
        ("wombat", r"^'wombat' is not a type\.$"),
        ("array<", "^it ends too early$"),
    ],
)
def test_the_word_that_is_no_type_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_type(text)
