"""Which local folder of an earlier executor a state server takes, which ones it deletes, and which it leaves alone."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.server.homes import Home, delete_forgotten, lock_folder, take_home

DAY_S = 86400
TAKEOVER_S = 0.3
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path, kind: str) -> Iterator[None]:
    """Lock a file in another process: the JVM by ``lockf``, a state server by ``flock``."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield
        process.kill()


def leave_home(parent: Path, name: str, days: float = 0) -> Path:
    """Make what a killed executor left that many days ago."""
    home = parent / f"ckpt-{name}"
    home.mkdir(parents=True, mode=0o700)
    (home / "server" / "stores").mkdir(parents=True, mode=0o700)
    (home / "readers" / "secondary-1").mkdir(parents=True)
    for file in ("owner.lock", "server/server.lock", "readers/secondary-1/LOG"):
        (home / file).touch(mode=0o600)
    set_age(home, days)
    return home


def set_age(home: Path, days: float) -> None:
    for path in (home, *home.glob("*"), *home.glob("server/*")):
        os.utime(path, (time.time() - days * DAY_S,) * 2, follow_symlinks=False)


class Machine:
    """State servers of executors that have a folder in common."""

    def __init__(self) -> None:
        self.homes: list[Home] = []

    def take(
        self,
        parent: Path,
        former: Path | None = None,
        *,
        adopts: bool = True,
        executor: str = "1",
        takeover_s: float = TAKEOVER_S,
    ) -> Path:
        home = take_home(parent, executor, former=former, adopts=adopts, takeover_s=takeover_s)
        self.homes.append(home)
        return home.path

    def end(self) -> None:
        """End all state servers; the executors are dead."""
        for home in self.homes:
            home.folder.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    started = Machine()
    yield started
    started.end()


def others_may(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o077


def test_the_home_used_last_is_taken_and_each_only_once(tmp_path: Path, machine: Machine) -> None:
    left = [leave_home(tmp_path, name, days) for name, days in (("1-old", 2), ("2-new", 0), ("3-older", 3))]
    taken = [machine.take(tmp_path) for _ in range(4)]
    assert taken[:3] == [left[1], left[0], left[2]]
    assert taken[3] not in left
    assert all((home / "server" / "stores").is_dir() for home in taken[:3])
    assert not any((home / "readers").exists() for home in taken)


def test_a_new_home_is_made_in_an_executors_own_folder(tmp_path: Path, machine: Machine) -> None:
    left = leave_home(tmp_path, "1-left")
    home = machine.take(tmp_path, adopts=False, executor="../odd")
    assert home != left
    assert home.parent == tmp_path


def test_a_new_home_is_the_users_alone_whatever_the_umask_is(tmp_path: Path, machine: Machine) -> None:
    before = os.umask(0)
    try:
        home = machine.take(tmp_path / "missing" / "parent")
    finally:
        os.umask(before)
    made = [home, *home.rglob("*")]
    assert len(made) == 4
    assert [path for path in made if others_may(path)] == []


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o500])
def test_a_home_that_is_not_private_is_neither_taken_nor_deleted(mode: int, tmp_path: Path, machine: Machine) -> None:
    planted = leave_home(tmp_path, "1-planted", days=30)
    planted.chmod(mode)
    assert machine.take(tmp_path) != planted
    delete_forgotten(tmp_path)
    assert planted.exists()
    planted.chmod(0o700)
    assert machine.take(tmp_path) == planted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
@pytest.mark.parametrize("path", ["", "server"])
def test_a_home_of_another_user_is_neither_taken_nor_deleted(path: str, tmp_path: Path, machine: Machine) -> None:
    theirs = leave_home(tmp_path, "1-theirs", days=30)
    os.chown(theirs / path, 4711, 4711)
    assert machine.take(tmp_path) != theirs
    delete_forgotten(tmp_path)
    assert theirs.exists()


@pytest.mark.parametrize("name", ["", "owner.lock", "server", "server/server.lock"])
def test_a_home_with_a_link_is_neither_taken_nor_deleted(name: str, tmp_path: Path, machine: Machine) -> None:
    home = leave_home(tmp_path / "local", "1-home", days=30)
    elsewhere = (home / name).rename(tmp_path / "elsewhere")
    home.joinpath(name).symlink_to(elsewhere)
    set_age(home, days=30)
    assert machine.take(tmp_path / "local") != home
    delete_forgotten(tmp_path / "local")
    assert elsewhere.exists()
    assert home.exists()


def test_a_link_in_the_place_of_scratch_files_is_removed(tmp_path: Path, machine: Machine) -> None:
    home, elsewhere = leave_home(tmp_path / "local", "1-home"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    shutil.rmtree(home / "readers", ignore_errors=True)
    (home / "readers").symlink_to(elsewhere)
    assert machine.take(tmp_path / "local") == home
    assert not (home / "readers").is_symlink()
    assert (elsewhere / "file").exists()


def test_other_folders_are_left_alone(tmp_path: Path, machine: Machine) -> None:
    strangers = [leave_home(tmp_path, "1-no-lock"), leave_home(tmp_path, "x").rename(tmp_path / "x")]
    (strangers[0] / "owner.lock").rename(strangers[0] / "file-of-a-user")
    for path in strangers:
        set_age(path, days=30)
    assert machine.take(tmp_path) not in strangers
    delete_forgotten(tmp_path)
    assert all(path.exists() for path in strangers)


def test_a_home_whose_executor_lives_is_neither_taken_nor_deleted_while_its_server_is_down(
    tmp_path: Path, machine: Machine
) -> None:
    home = leave_home(tmp_path, "1-live", days=30)
    with held(home / "owner.lock", "lockf"):
        began = time.monotonic()
        assert machine.take(tmp_path) != home
        assert time.monotonic() - began < TAKEOVER_S, "it is not waited for"
        delete_forgotten(tmp_path)
        assert home.exists()
        assert machine.take(tmp_path, former=home) == home, "the next server of that executor"
        assert (home / "readers" / "secondary-1").exists(), "its JVM uses them"
    machine.end()
    assert home in (machine.take(tmp_path), machine.take(tmp_path)), "both are free now"


def test_a_home_whose_server_outlives_its_executor_is_neither_taken_nor_deleted(
    tmp_path: Path, machine: Machine
) -> None:
    home = leave_home(tmp_path, "1-stuck", days=30)
    with held(home / "server" / "server.lock", "flock"):
        assert machine.take(tmp_path) != home
        delete_forgotten(tmp_path)
        assert home.exists()
        assert machine.take(tmp_path, former=home) != home
    assert machine.take(tmp_path) == home


@pytest.mark.parametrize("is_former", [True, False])
def test_a_server_that_is_about_to_end_is_waited_for(
    is_former: bool,  # noqa: FBT001 - a parameter of pytest
    tmp_path: Path,
    machine: Machine,
) -> None:
    home = leave_home(tmp_path, "1-ending")
    ending = lock_folder(home / "server")
    assert ending is not None
    timer = threading.Timer(0.3, ending.close)
    timer.start()
    assert machine.take(tmp_path, former=home if is_former else None, takeover_s=30.0) == home
    timer.join()


def test_an_executor_whose_folder_is_gone_gets_another(tmp_path: Path, machine: Machine) -> None:
    assert machine.take(tmp_path, former=tmp_path / "ckpt-1-gone").is_dir()


def test_homes_that_nobody_has_used_for_a_week_are_deleted(tmp_path: Path) -> None:
    old, new = leave_home(tmp_path / "local", "1-old", days=8), leave_home(tmp_path / "local", "1-new", days=6)
    kept = tmp_path / "kept" / "file"
    kept.parent.mkdir()
    kept.touch()
    for name in ("link", "server/link"):
        (old / name).symlink_to(kept.parent)
    set_age(old, days=8)
    delete_forgotten(tmp_path / "local")
    assert list((tmp_path / "local").iterdir()) == [new]
    assert kept.exists()
    delete_forgotten(tmp_path / "missing")
    delete_forgotten(kept)  # it is no folder


@pytest.mark.parametrize("names", [(), ("server/server.lock",), ("server",), ("server", "readers")])
def test_what_is_left_of_a_home_is_never_taken_and_deleted_after_a_week(
    names: tuple[str, ...], tmp_path: Path, machine: Machine
) -> None:
    left = [leave_home(tmp_path, name) for name in ("1-old", "1-new")]
    for home, days in zip(left, (8, 6), strict=True):
        for path in (home / name for name in ("owner.lock", *names)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        set_age(home, days)
    taken = machine.take(tmp_path)
    assert taken not in left
    delete_forgotten(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([left[1], taken])


def test_a_home_that_has_lost_the_lock_of_its_owner_is_left_alone_while_a_server_uses_it(tmp_path: Path) -> None:
    home = leave_home(tmp_path, "1-used")
    (home / "owner.lock").unlink()
    set_age(home, days=30)
    with held(home / "server" / "server.lock", "flock"):
        delete_forgotten(tmp_path)
        assert (home / "readers" / "secondary-1" / "LOG").exists()
    delete_forgotten(tmp_path)
    assert not home.exists()


def test_a_home_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    made = tmp_path / "ckpt-1-made"
    made.mkdir(mode=0o700)
    delete_forgotten(tmp_path)
    assert made.exists()


def test_nothing_is_left_of_a_home_that_cannot_be_made(tmp_path: Path, machine: Machine) -> None:
    parent = tmp_path
    # The path of a home is short enough, and the path of a folder in it is not.
    while (missing := os.pathconf(tmp_path, "PC_PATH_MAX") - 20 - len(str(parent))) > 1:
        parent /= "x" * min(200, missing - 1)
    parent.mkdir(parents=True)
    with pytest.raises(OSError, match="name too long"):
        machine.take(parent)
    assert list(parent.iterdir()) == []


def test_a_home_counts_as_used_when_its_server_was_used(tmp_path: Path, machine: Machine) -> None:
    idle, used = leave_home(tmp_path, "1-idle"), leave_home(tmp_path, "1-used")
    (used / "server" / "staging").mkdir()
    set_age(idle, days=8)
    set_age(used, days=9)
    (used / "server" / "staging" / "7-transaction").mkdir()
    delete_forgotten(tmp_path)
    assert list(tmp_path.iterdir()) == [used]
    assert machine.take(tmp_path) == used


def test_a_home_that_was_taken_counts_as_used(tmp_path: Path, machine: Machine) -> None:
    old = leave_home(tmp_path, "1-old", days=30)
    assert machine.take(tmp_path) == old
    machine.end()
    delete_forgotten(tmp_path)
    assert old.exists()
