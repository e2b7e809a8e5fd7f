"""What the command line says: of commands and options as they are typed, of what there is, in the right number."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.dispatch import spell_options
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.options import PREFIX
from tests.compat.frozen import unpack
from tests.labs.saved_query import Query, written


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(unpack("v1", "keyed", tmp_path_factory.mktemp("frozen") / "keyed"))


def refused(capsys: pytest.CaptureFixture[str], *call: str, code: int = 2) -> str:
    """What is told of a call that is refused; nothing goes to stdout."""
    capsys.readouterr()
    assert main([*call]) == code
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("create", "'pyspark-ckpt' has no command 'create'. Did you mean 'pyspark-ckpt savepoint create'?"),
        ("restore a b", "Did you mean 'pyspark-ckpt savepoint restore'?"),
        (
            "savepoint rescale a b",
            "'pyspark-ckpt savepoint' has no command 'rescale'. Did you mean 'pyspark-ckpt checkpoint resc",
        ),
        ("savepoint gc x", "Did you mean 'pyspark-ckpt checkpoint gc'?"),
        ("list x", "Did you mean 'pyspark-ckpt checkpoint list' or 'pyspark-ckpt savepoint list'?"),
        ("savepoint restor a b", "Did you mean 'pyspark-ckpt savepoint restore'?"),
        ("chekpoint list", "Did you mean 'pyspark-ckpt checkpoint'"),
        ("state views", "'pyspark-ckpt state' has no command 'views'. It has: read, count, diff, changes, get."),
    ],
)
def test_an_unknown_command_is_answered_with_one_of_any_group(
    call: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, *call.split())


def test_errors_name_options_as_they_are_typed(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query, saved, new = written(quick_path / "query", 2), str(quick_path / "saved"), str(quick_path / "new")
    assert main(["savepoint", "create", query.location, saved]) == 0
    for call, words in (
        (("checkpoint", "rescale", query.location, new, "-n", "0"), "--parallelism must be at least 1, got 0."),
        (("savepoint", "restore", saved, new, "--uid", "a=b"), "--uid renames ['a']"),
        (("savepoint", "restore", saved, new, "--uid", "a=b"), "Correct --uid, or pass --allow-non-restored-state."),
        (("state", "read", query.location), "Select one by --uid and --state, or by --operator, --store and --state."),
        (("checkpoint", "rescale", query.location, "", "-n", "3"), "Invalid value for 'TARGET': give a path or a URL"),
        (("checkpoint", "list", ""), "Invalid value for 'CHECKPOINT': give a path or a URL"),
        (("checkpoint", "list", query.location, "-o", "placeTimeout=x"), "Option -o placeTimeout has the value 'x'"),
        (
            ("checkpoint", "list", query.location, "-o", "s3Endpont=x"),
            "there is no option 's3Endpont'. Did you mean 's3En",
        ),
        (("checkpoint", "list", query.location, "-o", "s3endpoint=x"), "Known options: python, backend, memoryLimit, "),
    ):
        assert words in refused(capsys, *call), call


def test_only_names_of_arguments_become_options() -> None:
    options = [click.Option(["-n", "--parallelism"]), click.Option(["--query-id"])]
    for text, spelled in (
        ("`parallelism` must be 1", "--parallelism must be 1"),
        ("`query_id` must be 'keep'", "--query-id must be 'keep'"),
        ("Keyed operator 'query_id' has 3, query_id too", "Keyed operator 'query_id' has 3, query_id too"),
        ("delete '/tmp/my query_id dir'", "delete '/tmp/my query_id dir'"),
        (f"Option {PREFIX}remote has, {PREFIX}x", f"Option -o remote has, {PREFIX}x"),
        (f"/data/{PREFIX}remote is lost", f"/data/{PREFIX}remote is lost"),
        ("the parallelism of /data/query_id/x", "the parallelism of /data/query_id/x"),
        ("State 'query_id' has max_parallelism 3", "State 'query_id' has max_parallelism 3"),
        ("Use `state read`, or `uid`.", "Use `state read`, or `uid`."),
    ):
        assert spell_options(text, options) == spelled


def test_a_selection_of_nothing_is_answered_with_what_there_is(
    frozen: str, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = Query(str(quick_path / "new"), 2).location
    without = written(quick_path / "without", 1, operators=(), batches=1).location
    for call, words in (
        (("read", new), "has no state: no batch is committed yet."),
        (("count", without), "has no state: no operator of the query keeps any."),
        (
            ("read", frozen, "--operator", "7"),
            "has no state for operator 7; there are: state 'days' of 'kinds' (operator 0)",
        ),
        (("read", frozen, "--store", "left"), "has no state for store 'left'; there are: state 'days' of 'kinds'"),
        (("read", frozen), "has 10 states: state 'days' of 'kinds' (operator 0);"),
    ):
        assert words in refused(capsys, "state", *call), call
    lacking = ("state", "get", frozen, "--uid", "kinds", "--state", "recent", "--key", "77", "--format", "json")
    assert refused(capsys, *lacking, code=1) == (
        "state 'recent' of 'kinds' (operator 0) has no row with key 77. It has 17 stored rows, by user int64.\n"
    )
    empty = str(quick_path / "empty")
    Path(empty).mkdir()
    assert main(["savepoint", "list", empty]) == 0
    assert main(["checkpoint", "list", without]) == 0
    assert main(["checkpoint", "inspect", without]) == 0
    told = capsys.readouterr().out
    assert (told.count("no savepoint\n"), told.count("no operator of the query keeps state\n")) == (1, 2)


@pytest.mark.parametrize(("number", "text"), [(0, "0 stores"), (1, "1 store"), (2, "2 stores"), (1000, "1,000 stores")])
def test_nouns_have_the_number_of_what_is_counted(number: int, text: str) -> None:
    assert count_text(number, "store") == text
    assert count_text(number, "entry", "entries") == text.replace("store", "entry").replace("entrys", "entries")


def test_one_of_a_kind_is_no_plural(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=1)
    (delta,) = (quick_path / "query").rglob("*.delta")
    assert main(["checkpoint", "verify", query.location]) == 0
    assert "1 store, 1 row; 1 delta, 3 files of the query, " in capsys.readouterr().out
    assert main(["savepoint", "create", query.location, str(quick_path / "saved")]) == 0
    assert ", 1 partition\n" in capsys.readouterr().out
    delta.unlink()
    assert main(["checkpoint", "verify", query.location]) == 1
    assert ": 1 problem\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "call", ["savepoint create", "checkpoint rescale", "checkpoint rescale --dry-run", "state count", "state read"]
)
def test_a_command_that_needs_a_committed_batch_is_a_wrong_call_before_there_is_one(
    call: str, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = Query(str(quick_path / "new"), 2).location
    words = call.split()
    more = () if words[0] == "state" else (str(quick_path / "target"),)
    number = ("-n", "3") if "rescale" in words else ()
    assert "no batch" in refused(capsys, *words, new, *more, *number)


def test_one_list_of_states_answers_no_selection_and_a_wrong_one(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 1, batches=1)
    several = refused(capsys, "state", "count", query.location).splitlines()[0]
    wrong = refused(capsys, "state", "count", query.location, "--uid", "other")
    listed = several.partition(" states: ")[2].removesuffix(".")
    assert listed.count("; ") + 1 == int(several.partition(" has ")[2].split()[0])
    assert f"there are: {listed}." in wrong


def test_inspect_shows_states_whose_types_of_keys_are_not_recorded(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 1, operators=(2,), batches=1)
    assert main(["checkpoint", "inspect", query.location]) == 0
    assert "visits/seen" in capsys.readouterr().out


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_gc_keeps_the_newest_version_and_as_many_below_it_as_it_says(
    keep: int, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(str(quick_path / "query"), 1, operators=(0,))
    for _ in range(6):
        query.run()
        for identity in query.identities():
            query.snapshot(identity)
    assert main(["checkpoint", "gc", query.location, "--keep", str(keep), "-o", "retentionGracePeriod=0"]) == 0
    below = "1 version" if keep == 1 else f"{keep} versions"
    assert capsys.readouterr().out.endswith(f" deleted; version 6 and up to {below} below it are kept\n")
    found = [main(["checkpoint", "verify", query.location, "--version", str(version)]) for version in range(1, 7)]
    assert found == [1] * (5 - keep) + [0] * (keep + 1)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pyspark-ckpt {ckpt.__version__}\n"
