"""``checkpoint verify`` on the files of the query itself, without which a start goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, RunObject
from pyspark_ckpt.state_store.blobs import Blob, LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query_start import verify_start
from pyspark_ckpt.state_store.format.names import run_name
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.options import parse
from tests.labs.saved_query import Query, written


@pytest.fixture
def query(quick_path: Path) -> Query:
    """Three batches are committed: 0 to 2."""
    return written(quick_path / "query", 2, operators=(0,))


def verify(query: Query, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    capsys.readouterr()
    return main(["checkpoint", "verify", query.location, *more]), capsys.readouterr().out


def test_what_a_start_needs_is_read(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = verify(query, capsys)
    read = "4 files of the query, 3 files of its sources, 2 files about operators, "
    assert (code, "; " in told, read in told) == (0, True, True), told
    query.plan()  # a batch that will run again
    code, told = verify(query, capsys)
    assert (code, "4 files of the query, " in told) == (0, True), told


def test_what_the_query_keeps_about_idle_inputs_is_read(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    for batch in (1, 2):
        query.place.put(f"_ckpt/watermarks/{batch}", b'v1\n{"inputs":[]}')
    code, told = verify(query, capsys)
    assert (code, "5 files of the query, " in told) == (0, True), told
    query.place.put("_ckpt/watermarks/2", b"v1\n{")
    code, told = verify(query, capsys)
    assert (code, "_ckpt/watermarks/2 is damaged" in told, "Spark does not start the query with it" in told) == (
        1,
        True,
        True,
    ), told


def test_logs_that_spark_has_purged_are_not_missed(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    query.purge(2)
    assert verify(query, capsys)[0] == 0


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (["offsets/2"], "offsets/2 is missing, but {0}/commits/2 says that the batch is committed: Spark runs batch 1"),
        (["offsets/1"], "offsets/1 is missing, but {0}/offsets/2 is there: Spark does not start the query"),
        (["offsets/0", "offsets/1", "offsets/2"], "offsets has no entry, but {0}/commits/2 says"),
    ],
)
def test_a_lost_log_is_named_with_what_spark_would_do(
    lost: list[str], words: str, query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in lost:
        query.place.delete(name)
    code, told = verify(query, capsys)
    assert (code, words.format(query.location) in told, "all right" in told) == (1, True, False), told
    assert verify(query, capsys, "--version", "3")[0] == 0, "the state is intact"


def test_a_lost_commit_is_named_with_what_spark_would_do(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    query.plan()
    query.place.delete("commits/2")
    query.place.delete("commits/1")
    code, told = verify(query, capsys)
    assert (
        code,
        "commits/2 is missing, but " in told,
        "Spark runs batch 3 from version 3 of the state; in checkpoint format 2" in told,
    ) == (1, True, True), told


@pytest.mark.parametrize("name", ["offsets/2", "offsets/1"])
@pytest.mark.parametrize("content", [b"", b"v1\n{", b"\xff\xfe", b"v1\n"])
def test_a_damaged_log_is_named(name: str, content: bytes, query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(query.location) / name).write_bytes(content)
    code, told = verify(query, capsys)
    assert (code, f"{name} " in told, "Spark does not start the query with it." in told) == (1, True, True), told


def test_a_damaged_number_of_the_newest_run_is_named(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    query.place.put(run_name(1), seal(RunObject(RUN_FORMAT, "the run before"))[:9])
    query.place.put(run_name(2), (newest := seal(RunObject(RUN_FORMAT, "the run"))))
    assert verify(query, capsys)[0] == 0
    query.place.put(run_name(2), newest[:60])
    code, told = verify(query, capsys)
    assert (code, f"{run_name(2)} is damaged: " in told) == (1, True), told


def test_a_query_that_commits_meanwhile_is_not_taken_for_a_damaged_one(query: Query) -> None:
    checkpoint = Checkpoint(query.location, parse({}))
    assert checkpoint.newest_version == 3
    query.run(2)
    query.purge(2)
    assert (verify_start(checkpoint).problems, checkpoint.newest_version) == ((), 5)


SCHEMA = b'\0\2v2\0\0\0\1\0\4{"a"\0\0\0\1\0\2{}'
"""A schema whose keys are cut."""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(
            ("sources/0/2", content)
            for content in (b"", b"\0\0\0", b'v1\n{"path":"file:///in/2"', b"v1", b"v1\n", b"not a log", b"v1\nx")
        ),
        ("sources/0/1.compact", b"v1\n{}\n{"),
        *(("state/0/0/left/_metadata/schema", content) for content in (b"", b"\0\2v", b"\0\2xx", SCHEMA)),
        ("state/0/_stateSchema/default/0_a", b"\0\7v"),
    ],
)
def test_a_damaged_file_of_sources_or_operators_is_named(
    name: str, content: bytes, query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.place.put(name, content)
    code, told = verify(query, capsys)
    said = f"{name} is damaged: " in told and "Spark does not start the query with it" in told
    assert (code, said) == (1, True), told


def test_a_damaged_schema_is_named_whatever_the_sources_are(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        offsets = query.place.get(f"offsets/{number}").replace(
            b'{"logOffset":%d}' % number, b'{"topic":{"0":%d}}' % number
        )
        query.place.put(f"offsets/{number}", offsets)
    assert verify(query, capsys)[0] == 0
    query.place.put("state/0/0/left/_metadata/schema", SCHEMA)
    code, told = verify(query, capsys)
    assert (code, "state/0/0/left/_metadata/schema is damaged: " in told) == (1, True), told


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sources/1/0", b"v1\n1700000000000"),
        ("sources/1/0", b'\0v1\n{"topic":{"0":5}}'),
        ("sources/1/0", b'{"shards":\n'),
        ("sources/1/of another program", b""),
        ("sources/0/1", b"v1\n{"),
        ("state/0/0/left/_metadata/schema", b"\0\2v9 what comes"),
    ],
    ids=["rate", "kafka", "another program", "no log", "replaced", "newer"],
)
def test_a_file_of_a_form_that_is_not_known_is_not_called_damaged(
    name: str, content: bytes, query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.place.put("sources/0/1.compact", b"v1\n{}\n{}")
    query.place.put(name, content)
    assert verify(query, capsys)[0] == 0


@pytest.mark.parametrize("lost", ["sources/0/0", "sources/0/1", "sources/0/2"])
def test_a_lost_log_of_a_file_source_is_named(lost: str, query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    query.place.delete(lost)
    code, told = verify(query, capsys)
    assert (code, f"{lost} is missing, but {query.location}/offsets/2 says" in told) == (1, True), told
    if lost == "sources/0/0":
        query.place.put("sources/0/1.compact", b"v1\n{}\n{}")
        assert verify(query, capsys)[0] == 0


def test_a_log_of_a_file_source_with_an_absurd_number_is_named_at_once(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = query.place.get("offsets/2").replace(b'{"logOffset":2}', b'{"logOffset":9223372036854775807}')
    query.place.put("offsets/2", offsets)
    assert "sources/0/3 is missing" in verify(query, capsys)[1]


def test_a_query_that_is_quicker_than_each_listing_is_not_taken_for_a_damaged_one(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During each listing of a log, two batches are planned and committed, and a third one is planned."""
    list_slowly, entry = LocalPlace.list, query.place.get("commits/2")
    query.plan()

    def list_and_run(place: LocalPlace, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        found = list_slowly(place, folder, prefix, start)
        for _ in range(2 if folder in {"offsets", "commits"} else 0):
            place.put(f"commits/{query.version}", entry)
            query.version += 1
            query.plan()
        return found

    monkeypatch.setattr(LocalPlace, "list", list_and_run)
    assert verify_start(Checkpoint(query.location, parse({}))).problems == ()
    assert query.version > 6
