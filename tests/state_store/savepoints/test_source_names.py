"""Names for the sources of a query that began without them: a restore gives them, or refuses and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query.sources import EVOLUTION_CONF
from pyspark_ckpt.state_store.checkpoints.query_start import verify_start
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.restoring.request import RecordedRequest, RestoreRequest
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, files, stored, written

KAFKA = '{"orders":{"0":7}}'
FILES = '{"logOffset":2}'


@pytest.fixture
def query(quick_path: Path) -> Query:
    """Three batches of Kafka and files are committed, and another one is planned. A third source has had no rows."""
    query = written(quick_path / "query", 2, operators=(0,))
    for name in files(quick_path / "query" / "sources"):
        query.place.delete(f"sources/{name}")
    query.plan()
    query.place.delete("sources/0/3")
    query.place.put("sources/0/0", b'\0v1\n{"orders":{"0":0}}')
    query.place.put("sources/1/1.compact", b'v1\n{"path":"file:///in/0"}\n{"path":"file:///in/1"}')
    query.place.put("sources/1/2", b'v1\n{"path":"file:///in/2"}')
    for batch in range(4):
        put_offsets(query, batch, KAFKA, FILES, "-")
    return query


def put_offsets(query: Query, batch: int, *lines: str, version: str = "v1", **confs: str) -> None:
    name = f"offsets/{batch}"
    entry = json.loads(query.place.get(name).split(b"\n")[1])
    entry["conf"].update(confs)
    query.place.put(name, "\n".join([version, json.dumps(entry), *lines]).encode())


def take(query: Query, **how: Any) -> str:  # noqa: ANN401
    target = str(Path(query.location).parent / "saved")
    savepoints.savepoint(query.location, target, **how)
    return target


def read_offsets(folder: Path) -> dict[str, tuple[str, dict[str, Any], list[str]]]:
    """The entries of the log: version, JSON and offsets."""
    lines = {path.name: path.read_text().split("\n") for path in (folder / "offsets").iterdir()}
    return {name: (each[0], json.loads(each[1]), sorted(each[2:])) for name, each in lines.items()}


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
@pytest.mark.parametrize("partitions", [2, 3])
def test_the_log_and_the_files_of_sources_get_the_names(
    query: Query,
    quick_path: Path,
    kind: Kind,
    partitions: int,
) -> None:
    saved, target = take(query, kind=kind), quick_path / "new"
    before = files(quick_path / "saved" / "sources")
    savepoints.restore(saved, str(target), parallelism=partitions, source_names=["orders", "in_1", "0"])
    entries = read_offsets(target)
    assert sorted(entries) == ["1", "2", "3"], "those that the query needs, and of the planned batch"
    for version, entry, offsets in entries.values():
        assert (version, offsets) == ("v2", [f"in_1:{FILES}", f"orders:{KAFKA}"])
        assert entry["conf"][EVOLUTION_CONF] == "true"
        assert entry["conf"]["spark.sql.shuffle.partitions"] == str(partitions)
        assert entry["sourceMetadataInfo"] == {}
    assert files(target / "sources") == {
        "orders/0": before["0/0"],
        "in_1/1.compact": before["1/1.compact"],
        "in_1/2": before["1/2"],
    }
    assert stored(str(target)) == (query.version, partitions, query.rows)
    assert verify_start(Checkpoint(str(target), parse({}))).problems == ()
    (target / "sources" / "in_1" / "2").unlink()
    (lost,) = verify_start(Checkpoint(str(target), parse({}))).problems
    assert "sources/in_1/2 is missing" in lost


def test_names_may_be_numbers_of_other_sources(query: Query, quick_path: Path) -> None:
    saved = take(query)
    before = files(quick_path / "saved" / "sources")
    savepoints.restore(saved, str(quick_path / "new"), source_names=["2", "0", "1"])
    after = files(quick_path / "new" / "sources")
    assert after == {f"{'20'[name[0] == '1']}{name[1:]}": content for name, content in before.items()}
    assert read_offsets(quick_path / "new")["2"][2] == [f"0:{FILES}", f"2:{KAFKA}"]


def test_a_log_by_numbers_gets_names(query: Query, quick_path: Path) -> None:
    off = {EVOLUTION_CONF: "false"}
    put_offsets(query, 1, f"0:{KAFKA}", version="v2", **off)
    put_offsets(query, 2, f"1:{FILES}", f"0:{KAFKA}", version="v2", **off)
    put_offsets(query, 3, f"0:{KAFKA}", f"1:{FILES}", version="v2", **off)
    savepoints.restore(take(query), str(quick_path / "new"), source_names=["orders", "in_1"])
    found = {name: (version, offsets) for name, (version, _, offsets) in read_offsets(quick_path / "new").items()}
    both = ("v2", [f"in_1:{FILES}", f"orders:{KAFKA}"])
    assert found == {"1": ("v2", [f"orders:{KAFKA}"]), "2": both, "3": both}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["a"],
            r"has 1 name, but .*/3 has 3 sources: \(0\) .*orders.*; \(1\) .*, has read file:///in/2; \(2\) no",
        ),
        (["a", "b", "c", "d"], "has 4 names, but .* has 3 sources"),
        (["a", "b", "a"], "has 'a' 2 times"),
        (["a", "b-c", "d"], "has 'b-c', which cannot be the name"),
        (["a", "", "d"], "has '', which cannot"),
        (["a", "ä", "d"], "has 'ä', which cannot"),
        (["a", "b\n", "d"], r"has 'b\\n', which cannot"),
        (["a", 7, "d"], "has 7, which cannot"),
        (["a", "b" * 256, "c"], "which cannot"),
        ([], "is empty"),
        ("abc", "must be a list, got 'abc'"),
        ({"a": "b"}, "must be a list"),
    ],
)
def test_names_that_cannot_be_are_refused_before_anything_is_written(
    names: Any,  # noqa: ANN401
    words: str,
    query: Query,
    quick_path: Path,
) -> None:
    saved = take(query)
    with pytest.raises(InvalidInputError, match=words):
        savepoints.restore(saved, str(quick_path / "new"), source_names=names)
    assert not (quick_path / "new").exists()


def refuse(query: Query, names: Sequence[str], words: str, kind: type[CkptError] = InvalidInputError) -> None:
    target = Path(query.location).parent / "new"
    with pytest.raises(kind, match=words):
        savepoints.restore(take(query), str(target), source_names=names)
    assert not target.exists()


def test_sources_that_have_names_keep_them(query: Query) -> None:
    for batch in (1, 2, 3):
        put_offsets(query, batch, f"b:{FILES}", f"a:{KAFKA}", version="v2", **{EVOLUTION_CONF: "true"})
    refuse(query, ["x", "y"], r"already have names: \['a', 'b'\]")


@pytest.mark.parametrize(
    ("lines", "version", "words"),
    [
        ([KAFKA, ""], "v1", "no offset for a source, or two"),
        ([f"0:{KAFKA}", f"0:{KAFKA}"], "v2", "no offset for a source, or two"),
        ([KAFKA], "v2", "no offset for a source, or two"),
        ([f"a:{KAFKA}"], "v2", "no offset for a source, or two"),
        ([KAFKA], "v3", "has the version v3"),
    ],
)
def test_a_log_of_another_form_is_refused(query: Query, lines: Sequence[str], version: str, words: str) -> None:
    put_offsets(query, 2, *lines, version=version)
    refuse(query, ["a", "b", "c"], words, FormatError)


def test_entries_with_other_numbers_of_sources_are_refused(query: Query) -> None:
    put_offsets(query, 1, KAFKA, FILES)
    refuse(query, ["a", "b", "c"], "offsets/1 has other sources than", FormatError)


def test_a_file_that_a_source_has_lost_is_noticed(query: Query) -> None:
    query.place.delete("sources/1/2")
    refuse(query, ["a", "b", "c"], r"files of source \(1\) in .*2}.*, are not in sources/1")


A, B, K, L, R = FILES, '{"logOffset":0}', KAFKA, '{"other":{"0":1}}', "17"
LOGS: Mapping[str, Mapping[str, bytes]] = {
    A: {"2.compact": b'v1\n{"path":"file:///a"}'},
    B: {"0": b'v1\n{"path":"file:///b"}'},
    K: {"0": b'\0v1\n{"orders":{"0":0}}'},
    L: {"0": b'\0v1\n{"other":{"0":0}}'},
}


def put_sources(query: Query, lines: Sequence[str], folders: Sequence[str]) -> None:
    """Lines of the log, and folders by their numbers; those of ``R`` and ``-`` have no files."""
    for name in files(Path(query.location) / "sources"):
        query.place.delete(f"sources/{name}")
    for number, line in enumerate(folders):
        for name, content in LOGS.get(line, {}).items():
            query.place.put(f"sources/{number}/{name}", content)
    for batch in (1, 2, 3):
        put_offsets(query, batch, *lines)


@pytest.mark.parametrize(
    "lines",
    [
        (A, A),
        (A, A, B),
        (B, A, A),
        (A, B, A, R),
        (A, A, K),
        (A, A, "-", K),
        (K, K),
        (K, K, A),
        (K, K, L),
        (K, K, L, R),
        (R, R, K),
        (K, A, K, L),
        ("-", K, K),
    ],
)
def test_a_frame_that_is_used_twice_is_refused(query: Query, lines: Sequence[str]) -> None:
    put_sources(query, lines, list(dict.fromkeys(lines)))
    refuse(query, [f"s{number}" for number in range(len(lines))], r"The files of source \([0-9]\) in .*, are not in")


@pytest.mark.parametrize(
    "lines",
    [
        (A, A),
        (A, A, R),
        (R, A, A),
        (A, R, A, "-"),
        (K, K),
        (R, R, A),
        (R, R),
        (A, K, A, R),
        (K, L, R),
        ("-", "-", K, R),
    ],
)
def test_sources_with_equal_offsets_are_told_apart(query: Query, quick_path: Path, lines: Sequence[str]) -> None:
    put_sources(query, lines, lines)
    names = [f"s{number}" for number in range(len(lines))]
    savepoints.restore(take(query), str(quick_path / "new"), source_names=names)
    expected = {
        f"{name}/{file}": content
        for name, line in zip(names, lines, strict=True)
        for file, content in LOGS.get(line, {}).items()
    }
    assert files(quick_path / "new" / "sources") == expected


def test_files_of_no_source_stay_where_no_source_finds_them(query: Query, quick_path: Path) -> None:
    query.place.put("sources/7/0", b"of a program that did not start")
    saved = take(query)
    with pytest.raises(InvalidInputError, match="sources/7 has files of another source"):
        savepoints.restore(saved, str(quick_path / "new"), source_names=["a", "b", "7"])
    savepoints.restore(saved, str(quick_path / "new"), source_names=["a", "b", "c"])
    assert (quick_path / "new" / "sources" / "7" / "0").exists()


def test_an_interrupted_restore_is_finished_with_the_same_names_alone(
    query: Query, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, target = take(query), str(quick_path / "new")
    how: Mapping[str, Any] = {"source_names": ["orders", "files", "none"], "parallelism": 3}
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_operators", _fail)
        with pytest.raises(RuntimeError, match="made-up failure"):
            savepoints.restore(saved, target, **how)
    for other in ({"source_names": ["files", "orders", "none"]}, {"source_names": None}):
        with pytest.raises(InvalidInputError, match=r"has an unfinished restore of .* and this is another"):
            savepoints.restore(saved, target, **{**how, **other})
    savepoints.restore(saved, target, **how)
    assert stored(target) == (query.version, 3, query.rows)
    assert sorted(path.name for path in (quick_path / "new" / "sources").iterdir()) == ["files", "orders"]
    with pytest.raises(InvalidInputError, match="this restore has already finished"):
        savepoints.restore(saved, target, **how)
    for other in ({"source_names": ["files", "orders", "none"]}, {"source_names": None}):
        with pytest.raises(InvalidInputError, match="is not empty: it is the checkpoint of query"):
            savepoints.restore(saved, target, **{**how, **other})


def _fail(*_given: object) -> None:
    raise RuntimeError("made-up failure")


def test_a_savepoint_can_be_claimed_with_names(query: Query, quick_path: Path) -> None:
    saved = take(query)
    savepoints.restore(saved, str(quick_path / "new"), source_names=["orders", "files", "none"], claim="claim")
    assert not files(Path(saved))
    assert stored(str(quick_path / "new")) == (query.version, 2, query.rows)


def test_a_restore_without_names_is_recorded_as_before_there_were_names() -> None:
    given = RecordedRequest(
        "/saved", "q", 5, 2, {"a": "b"}, "q2", keeps_id=False, remote="", source_digest="d", run="r"
    )
    assert msgspec.json.encode(given) == (
        b'{"source":"/saved","source_query":"q","version":5,"partitions":2,"uid_map":{"a":"b"},"query_id":"q2",'
        b'"keeps_id":false,"remote":"","source_digest":"d","run":"r"}'
    )


def test_a_restore_is_known_again_by_its_names() -> None:
    recorded = RecordedRequest("/saved", "q", 5, 2, {}, "q", keeps_id=True, remote="", source_names=("a", "b"))
    assert recorded.matches("/saved", RestoreRequest(source_names=("a", "b")), "")
    for names in ((), ("b", "a")):
        assert not recorded.matches("/saved", RestoreRequest(source_names=names), "")


def test_the_command_line_shows_the_order_and_takes_the_names(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, target = take(query), str(quick_path / "new")
    capsys.readouterr()
    assert main(["savepoint", "inspect", saved]) == 0
    told = capsys.readouterr().out
    assert told.index(KAFKA) < told.index(f"{FILES}, has read file:///in/2") < told.index("no offset yet")
    assert main(["savepoint", "restore", saved, target, "--source-names", "a,b", "--dry-run", "--quick"]) == 2
    assert "has 3 sources" in capsys.readouterr().err
    assert main(["savepoint", "restore", saved, target, "--source-names", "a,,b"]) == 2
    assert "has an empty name" in capsys.readouterr().err
    names = ("--source-names", "orders,files", "--source-names", "none")
    assert main(["savepoint", "restore", saved, target, *names]) == 0
    capsys.readouterr()
    assert main(["savepoint", "create", target, f"{target}-saved", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"] == [
        {"name": "files", "offset": FILES, "file": "file:///in/2"},
        {"name": "orders", "offset": KAFKA, "file": None},
    ]
