"""Functions of changes run where the rows are, in several processes: the result is that of one process."""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.savepoint import SavepointInfo
from pyspark_ckpt.writing import write_state

N, ITEMS = ckpt.ValueState("n", "long"), ckpt.ListState("items", "string")
COUNT = 3000


@pytest.fixture(params=["native", "canonical"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    users = [f"u{n}" for n in range(COUNT)]
    rows = pa.table({"user": users, "value": list(range(COUNT))})
    lists = pa.table({"user": users * 2, "index": [0] * COUNT + [1] * COUNT, "value": ["x"] * 2 * COUNT})
    put = [writing.Put("u", N, rows, key="user string"), writing.Put("u", ITEMS, lists)]
    write_state(None, tmp_path / "first", put, parallelism=4)
    if request.param == "canonical":
        return tmp_path / "first"
    restore(tmp_path / "first", tmp_path / "query", parallelism=4)
    savepoint(tmp_path / "query", tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tasks run in other processes, however little there is to do."""
    monkeypatch.setattr("pyspark_ckpt.savepoints.SMALL_BYTES", 0)


def _values(location: Path) -> dict[str, int]:
    with open_state(location, uid="u", state="n") as state:
        return {row["key"]["user"]: row["value"] for row in state.to_arrow().to_pylist()}


def _double(rows: pa.Table) -> pa.Table:
    even = rows.filter(pc.equal(pc.bit_wise_and(rows["value"], 1), 0))
    return even.set_column(even.column_names.index("value"), "value", pc.multiply(even["value"], 2))


def _content(info: SavepointInfo) -> Any:  # noqa: ANN401
    return [(each.digests, each.meta.states, [(file.name, file.xxh3) for file in each.files]) for each in info.rows]


@pytest.mark.in_turn
def test_it_is_the_same_in_one_process_and_in_several(
    saved: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first = [writing.Transform("u", "items", lambda rows: rows.filter(pc.equal(rows["index"], 0)))]
    given: list[writing.Change | writing.Migration] = [
        *first,
        writing.Migration("double", [writing.Transform("u", "n", _double)]),
    ]
    here = write_state(saved, tmp_path / "here", given)
    request.getfixturevalue("processes")
    there = write_state(saved, tmp_path / "there", given)
    assert _content(here) == _content(there)
    assert _values(tmp_path / "there") == {f"u{n}": 2 * n for n in range(0, COUNT, 2)}


def test_a_function_that_cannot_be_sent_is_named(saved: Path, tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(rows: pa.Table) -> pa.Table:
        with lock:
            return rows

    change = writing.Transform("u", "n", locked)
    for act in (
        lambda: write_state(saved, tmp_path / "target", [change]),
        lambda: ckpt.writing.dry_run(saved, [change]),
    ):
        with pytest.raises(InvalidInputError, match=r"locked' cannot be sent to other processes: .*lock"):
            act()
    assert not (tmp_path / "target").exists()


class BadRowError(Exception):
    """An error of a user."""


@pytest.mark.in_turn
@pytest.mark.parametrize("runs", ["here", "processes"])
def test_what_a_function_raises_is_raised_with_its_traceback(
    runs: str, saved: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runs != "here":
        request.getfixturevalue(runs)

    def fail(rows: pa.Table) -> pa.Table:
        if "u7" in rows["key"].combine_chunks().field("user").to_pylist():
            raise BadRowError("u7 is bad")
        return rows

    with pytest.raises(BadRowError, match="u7 is bad") as caught:
        write_state(saved, tmp_path / "target", [writing.Transform("u", "n", fail)])
    assert any("is left" in note or "savepoint delete" in note for note in caught.value.__notes__)
    assert "in fail" in str(caught.value.__cause__)
    assert 'raise BadRowError("u7 is bad")' in str(caught.value.__cause__)
    with pytest.raises(InvalidInputError, match="is not a savepoint"):
        restore(tmp_path / "target", tmp_path / "never")


def _exit(_rows: pa.Table) -> pa.Table:
    sys.exit(3)


def _stop(_rows: pa.Table) -> pa.Table:
    raise StopIteration("no more")


@pytest.mark.in_turn
@pytest.mark.parametrize("runs", ["here", "processes"])
@pytest.mark.parametrize(("function", "said"), [(_exit, "SystemExit: 3"), (_stop, "StopIteration: no more")])
def test_what_would_end_a_program_or_a_loop_is_an_error(
    function: Any,  # noqa: ANN401
    said: str,
    runs: str,
    saved: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if runs != "here":
        request.getfixturevalue(runs)
    change = writing.Transform("u", "n", function)
    for act in (
        lambda: write_state(saved, tmp_path / "target", [change]),
        lambda: ckpt.writing.dry_run(saved, [change]),
    ):
        with pytest.raises(InvalidInputError, match=rf"(?s)raised an error\..*in {function.__name__}\n.*{said}"):
            act()


class UnsendableError(Exception):
    """An error that no other process can make."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


@pytest.mark.in_turn
@pytest.mark.usefixtures("processes")
def test_an_error_that_cannot_be_sent_is_shown(saved: Path, tmp_path: Path) -> None:
    def fail(_rows: pa.Table) -> pa.Table:
        raise UnsendableError("no", "way")

    with pytest.raises(InvalidInputError, match=r"(?s)fail' raised an error\..*in fail\n.*UnsendableError: no way"):
        write_state(saved, tmp_path / "target", [writing.Transform("u", "n", fail)])


@pytest.mark.in_turn
@pytest.mark.usefixtures("processes")
def test_functions_with_a_cache_are_copied_like_others(saved: Path, tmp_path: Path) -> None:
    @functools.lru_cache(maxsize=7)
    def fibonacci(n: int) -> int:
        """It calls its own cache."""
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def change(rows: pa.Table) -> pa.Table:
        assert (fibonacci.cache_info().maxsize, fibonacci.__name__) == (7, "fibonacci")
        assert fibonacci.__doc__ == "It calls its own cache."
        return rows.set_column(1, "value", pa.array([fibonacci(n % 50) for n in rows["value"].to_pylist()]))

    write_state(saved, tmp_path / "target", [writing.Transform("u", "n", change)])
    assert _values(tmp_path / "target") == {f"u{n}": fibonacci(n % 50) for n in range(COUNT)}


@pytest.mark.in_turn
@pytest.mark.usefixtures("processes")
def test_a_function_whose_module_is_not_there_is_named(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    module = tmp_path / "modules" / "module_of_a_change.py"
    module.write_text("def same(rows):\n    return rows\n")
    monkeypatch.syspath_prepend(str(module.parent))
    from module_of_a_change import same  # type: ignore[import-not-found]

    module.rename(tmp_path / "gone.py")
    with pytest.raises(InvalidInputError, match="'same' cannot be loaded where the rows are: ModuleNotFoundError: "):
        write_state(saved, tmp_path / "target", [writing.Transform("u", "n", same)])


@pytest.mark.in_turn
@pytest.mark.usefixtures("processes")
def test_a_module_of_the_working_folder_is_found_as_in_an_interactive_python(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_the_folder.py").write_text("def same(rows):\n    return rows\n")
    (tmp_path / "random.py").write_text("raise ImportError('this one is not Python own')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *filter(None, sys.path)])
    from module_of_the_folder import same  # type: ignore[import-not-found]

    write_state(saved, tmp_path / "target", [writing.Transform("u", "n", same)])
    assert _values(tmp_path / "target") == _values(saved)


def test_what_a_function_changes_stays_in_its_process(saved: Path, tmp_path: Path) -> None:
    """It is the same in one process, so that a try on little state shows it."""
    seen: list[int] = []

    def note(rows: pa.Table) -> pa.Table:
        seen.append(len(rows))
        return rows

    write_state(saved, tmp_path / "target", [writing.Transform("u", "n", note)])
    assert seen == []


@pytest.mark.kill
@pytest.mark.usefixtures("processes")
def test_the_death_of_a_process_is_an_error(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "killed"

    def die(rows: pa.Table) -> pa.Table:
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return _double(rows)
        os.kill(os.getpid(), signal.SIGKILL)
        return rows

    change = writing.Transform("u", "n", die)
    with pytest.raises(ProcessError, match=r"The process that ran encode-.* has ended \(status -9\)"):
        write_state(saved, tmp_path / "target", [change])
    with pytest.raises(InvalidInputError, match="is not a savepoint"):
        restore(tmp_path / "target", tmp_path / "never")
    delete(str(tmp_path / "target"), parse({}))
    write_state(saved, tmp_path / "target", [change])
    assert _values(tmp_path / "target") == {f"u{n}": 2 * n for n in range(0, COUNT, 2)}


@pytest.mark.kill
@pytest.mark.usefixtures("processes")
def test_processes_are_killed_at_any_time(saved: Path, tmp_path: Path) -> None:
    """Each time, all is written, or there is an error and no savepoint."""
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    given = [writing.Transform("u", "n", _double), writing.Transform("u", "items", lambda rows: rows)]
    started = time.perf_counter()
    expected = _content(write_state(saved, tmp_path / "calm", given))
    taken_s = time.perf_counter() - started
    failed, others = 0, set(psutil.Process().children())  # such as services that tests share
    for number in range(6):
        target, wait_s = tmp_path / f"{number}", draw.uniform(0, taken_s)

        def kill(wait_s: float = wait_s) -> None:
            time.sleep(wait_s)
            if workers := [each for each in psutil.Process().children() if each not in others]:
                draw.choice(workers).kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            found = write_state(saved, target, given)
            assert _content(found) == expected, f"seed {seed}, {number}"
        except ProcessError:
            failed += 1
            assert not (target / "savepoint.json").exists()
            delete(str(target), parse({}))
            assert [path for path in target.rglob("*") if path.is_file()] == []
        finally:
            killer.join()
    print(f"{failed} of 6 failed, seed {seed}")
