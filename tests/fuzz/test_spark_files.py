"""Files that Spark keeps for sources and schemas, damaged: they pass, or a FormatError says where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.state_store.checkpoints.query.spark_files import check_form, find_lost_source_files, read_file_offsets
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


@pytest.mark.parametrize("name", FILES)
@fuzzed
@given(content=st.data())
def test_a_damaged_file_passes_or_is_refused(name: str, content: st.DataObject) -> None:
    check_form(name, FILES[name], name, {0})
    given_content = content.draw(damaged(FILES[name]))
    read_or_refuse(lambda: check_form(name, given_content, name, {0}), given_content, name)


@fuzzed
@given(content=damaged(OFFSETS))
def test_damaged_offsets_name_a_lost_file_at_most(content: bytes) -> None:
    assert find_lost_source_files(read_file_offsets(OFFSETS), ["sources/0/9"]) == ["sources/0/0"]
    assert find_lost_source_files(read_file_offsets(OFFSETS), ["sources/0/9.compact"]) == []
    lost = read_or_refuse(lambda: find_lost_source_files(read_file_offsets(content), FILES), content, "offsets")
    assert lost is not None
    assert all(each.startswith("sources/") for each in lost)
