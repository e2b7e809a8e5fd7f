"""What a reader keeps on the local disk."""

from __future__ import annotations

import gc
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from pyspark_ckpt.offline.reading.kept_folders import MAX_FOLDERS, KeptFolders
from pyspark_ckpt.state_store.errors import StorageError

SIZE = 1000


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class Made:
    """Fills folders, and notes when what is in them is closed."""

    def __init__(self) -> None:
        self.count = 0
        self.open: set[int] = set()

    def __call__(self, folder: Path) -> AbstractContextManager[int]:
        (folder / "file").write_bytes(bytes(SIZE))
        (folder / "link").hardlink_to(folder / "file")
        return self._held()

    @contextmanager
    def _held(self) -> Iterator[int]:
        self.count += 1
        number = self.count
        self.open.add(number)
        yield number
        self.open.discard(number)


def use(kept: KeptFolders, key: str, made: Made) -> int:
    with kept.use(key, made) as number:
        return number


def test_a_folder_is_private_and_made_once_for_its_key(temporary: Path) -> None:
    kept, made = KeptFolders(), Made()
    assert [use(kept, key, made) for key in "abab"] == [1, 2, 1, 2]
    assert {stat.S_IMODE(each.stat().st_mode) for each in temporary.iterdir()} == {0o700}
    kept.close()
    kept.close()
    assert not made.open
    assert not list(temporary.iterdir())


def test_the_folders_used_least_recently_go_when_all_take_too_much(temporary: Path) -> None:
    kept, made = KeptFolders(2 * SIZE), Made()
    assert [use(kept, key, made) for key in "abacbac"] == [1, 2, 1, 3, 4, 5, 6]
    assert made.open == {5, 6}
    assert len(list(temporary.iterdir())) == 2


def test_the_number_of_folders_is_bounded(temporary: Path) -> None:
    kept, made = KeptFolders(), Made()
    for number in range(MAX_FOLDERS + 3):
        use(kept, str(number), made)
    assert len(made.open) == len(list(temporary.iterdir())) == MAX_FOLDERS


def test_nothing_is_kept_when_it_takes_more_than_all_may_or_has_failed(temporary: Path) -> None:
    made = Made()
    use(KeptFolders(SIZE - 1), "a", made)
    kept = KeptFolders()
    with pytest.raises(ValueError, match="mine"), kept.use("a", made):
        raise ValueError("mine")
    assert not made.open
    assert not list(temporary.iterdir())


def test_a_folder_goes_with_the_reader_when_that_is_not_closed(temporary: Path) -> None:
    kept, made = KeptFolders(), Made()
    use(kept, "a", made)
    del kept
    gc.collect()
    assert not made.open
    assert not list(temporary.iterdir())


def test_a_folder_that_a_cleaner_has_removed_is_made_again(temporary: Path) -> None:
    kept, made = KeptFolders(), Made()
    use(kept, "a", made)
    (folder,) = temporary.iterdir()
    shutil.rmtree(folder)
    assert use(kept, "a", made) == 2
    assert made.open == {2}
    kept.close()


def test_a_place_for_temporary_files_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match=r"temporary folder.*gone") as problem:
        use(KeptFolders(), "a", Made())
    assert "TMPDIR" in problem.value.hint
