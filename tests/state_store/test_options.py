"""The table of options and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pyspark_ckpt.state_store import options
from pyspark_ckpt.state_store.errors import InvalidInputError


def test_defaults_hold_when_nothing_is_set() -> None:
    parsed = options.parse({})
    assert parsed.memory_limit_bytes == 256 << 20
    assert (parsed.snapshot_every_versions, parsed.compression) == (10, "lz4")
    assert parsed.retention_grace_period_s == 600


def test_values_are_read_with_their_units() -> None:
    parsed = options.parse(
        {
            options.PREFIX + "memoryLimit": "1g",
            "startTimeout": "2m",
            "retentionGracePeriod": "500ms",
            "logLevel": "debug",
        }
    )
    assert parsed.memory_limit_bytes == 1 << 30
    assert (parsed.start_timeout_s, parsed.retention_grace_period_s, parsed.log_level) == (120, 0.5, "DEBUG")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memoryLimit", "lots"),
        ("memoryLimit", "1k"),
        ("snapshotEveryVersions", "0"),
        ("snapshotEveryVersions", "1.5"),
        ("compression", "gzip"),
        ("startTimeout", "-3"),
        ("placeTimeout", "2h"),
    ],
)
def test_a_bad_value_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        options.parse({key: value})
    assert options.PREFIX + key in caught.value.message
    assert repr(value) in caught.value.message
    assert caught.value.hint


def test_an_unknown_option_is_refused_with_the_near_one() -> None:
    with pytest.raises(InvalidInputError, match=r"Did you mean .*localCheckpoints"):
        options.parse({"localCheckpoint": "3"})


def test_every_row_has_a_unit_and_words() -> None:
    for key, row in options.table().items():
        assert row.doc.endswith("."), key
        assert row.unit or row.type in ("string", "enum"), key


GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "options.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", GOLDEN["numbers"], ids=lambda case: f"{case['type']} {case['text']}")
def test_a_number_is_what_it_is_in_the_jvm(case: dict[str, str | int]) -> None:
    kind, text = str(case["type"]), str(case["text"])
    if "problem" in case:
        with pytest.raises(ValueError, match=f"^{re.escape(str(case['problem']))}$"):
            options.read_number(kind, text)
    else:
        assert options.read_number(kind, text) * (1_000_000 if kind == "seconds" else 1) == case["value"]


@pytest.mark.parametrize("case", GOLDEN["options"], ids=lambda case: f"{case['key']} {case['text']}")
def test_a_value_is_kept_or_refused_as_in_the_jvm(case: dict[str, str]) -> None:
    key, text = case["key"], case["text"]
    if "problem" in case:
        with pytest.raises(InvalidInputError) as caught:
            options.parse({key: text})
        assert caught.value.message == f"Option {options.PREFIX}{key} has the value {text!r}: {case['problem']}."
        assert caught.value.hint == f"{options.table()[key].doc} Default: {options.table()[key].default!r}."
    else:
        options.parse({key: text})
        assert options.canonical_text(key, text) == case["canonical"]


@pytest.mark.parametrize("case", [each for each in GOLDEN["numbers"] if " instead of " in each.get("problem", "")])
def test_what_a_refusal_says_to_write_is_a_number(case: dict[str, str]) -> None:
    instead = re.findall(r'"([^"]+)"', case["problem"])[:-1]
    assert instead
    numbers = [options.read_number(case["type"], each) for each in instead]
    given = re.sub(r"[0-9.]+", "1", case["text"])
    largest = options.read_number(case["type"], given)
    assert all(number <= (int(case["text"].partition(".")[0]) + 1) * largest for number in numbers)


def test_the_shares_of_the_memory_are_the_whole() -> None:
    shares = options.memory().shares
    assert shares.near_caches + shares.write_sets + shares.block_cache + shares.state_server == 1
    assert options.parse({"memoryLimit": "1g"}).server_memory_bytes == 128 << 20
