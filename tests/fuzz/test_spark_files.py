"""Files that Spark keeps for sources and schemas, damaged: they pass, or a FormatError says where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.query.sources import describe_sources, parse_offsets
from pyspark_ckpt.state_store.checkpoints.query.spark_files import (
    check_form,
    find_lost_source_files,
    guess_file_offsets,
    read_file_offsets,
)
from tests.fuzz.mutations import damaged, fuzzed, read_or_refuse

KEYS, VALUES = b'{"type":"struct","fields":[]}', b'{"type":"struct","fields":[{"name":"a"}]}'
SCHEMA = b"\0\2v2" + b"".join(b"\0\0\0\1" + len(each).to_bytes(2, "big") + each for each in (KEYS, VALUES))
FILES = {
    "sources/0/9.compact": b'v1\n{"path":"file:///in/1","timestamp":1,"batchId":0}\n{"path":"file:///in/2"}',
    "sources/1/0": b'\0v1\n{"topic":{"0":5}}',
    "state/0/0/left/_metadata/schema": SCHEMA,
    "state/0/_stateSchema/default/0_a": b"\0\2v3\0\0\0\1",
}
OFFSETS = b'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"logOffset":9}\n{"topic":{"0":5}}\n-'
BY_NUMBER = b'v2\n{"conf":{"spark.sql.shuffle.partitions":"2"}}\n1:{"topic":{"0":5}}\n0:{"logOffset":9}'
NAMED = (
    b'v2\n{"conf":{"spark.sql.shuffle.partitions":"2","spark.sql.streaming.queryEvolution.enableSourceEvolution":"true"}}'
    b'\nb:{"topic":{"0":5}}\na:{"logOffset":9}'
)


@pytest.mark.parametrize("name", FILES)
@fuzzed
@given(content=st.data())
def test_a_damaged_file_passes_or_is_refused(name: str, content: st.DataObject) -> None:
    check_form(name, FILES[name], name, {"0"})
    given_content = content.draw(damaged(FILES[name]))
    read_or_refuse(lambda: check_form(name, given_content, name, {"0"}), given_content, name)


@fuzzed
@given(content=damaged(OFFSETS))
def test_damaged_offsets_name_a_lost_file_at_most(content: bytes) -> None:
    assert find_lost_source_files(read_file_offsets(OFFSETS), ["sources/0/9"]) == ["sources/0/0"]
    assert find_lost_source_files(read_file_offsets(OFFSETS), ["sources/0/9.compact"]) == []
    lost = read_or_refuse(lambda: find_lost_source_files(read_file_offsets(content), FILES), content, "offsets")
    assert lost is not None
    assert all(each.startswith("sources/") for each in lost)


@pytest.mark.parametrize("entry", [OFFSETS, BY_NUMBER, NAMED])
@fuzzed
@given(data=st.data())
def test_damaged_offsets_are_those_of_sources_or_refused(entry: bytes, data: st.DataObject, tmp_path: Path) -> None:
    content = data.draw(damaged(entry))
    found = read_or_refuse(lambda: parse_offsets(content, "offsets/1"), content, "offsets/1")
    if found is not None:
        assert len(describe_sources(LocalPlace(tmp_path), found)) == len(found.by_id)


def test_offsets_lead_to_no_file_outside_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "0").write_bytes(b'v1\n{"path":"secret"}')
    for name in ("../../outside", "..", "a/../../../outside"):
        found = parse_offsets(NAMED.replace(b"a:", f"{name}:".encode()), "offsets/1")
        described = describe_sources(LocalPlace(tmp_path / "checkpoint"), found)
        assert [each.file for each in described] == [None, None]


def test_a_frame_that_is_used_twice_has_one_folder() -> None:
    offsets = b'v1\n{}\n{"logOffset":1}\n{"logOffset":1}\n{"logOffset":0}'
    there = {"sources/0/0", "sources/0/1", "sources/1/0"}
    assert any(not find_lost_source_files(each, there) for each in guess_file_offsets(offsets))
    for lost in there:
        assert all(find_lost_source_files(each, there - {lost}) for each in guess_file_offsets(offsets))
    named = offsets.replace(b"v1", b"v2")
    assert list(guess_file_offsets(named)) == [read_file_offsets(named)]


def test_lost_files_of_a_source_with_a_name_are_found() -> None:
    assert find_lost_source_files(read_file_offsets(NAMED), ["sources/a/9.compact"]) == []
    assert find_lost_source_files(read_file_offsets(NAMED), ["sources/b/9", "sources/a/0"]) == ["sources/a/1"]
