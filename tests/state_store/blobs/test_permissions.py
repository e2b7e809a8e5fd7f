"""A missing permission of a file system: which one, on what, for whom; and no word of trying again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.base.caller import describe_caller
from pyspark_ckpt.state_store.errors import StorageError
from tests.faults.permissions import as_nobody


def refuse(quick_path: Path, act: Callable[[], object]) -> StorageError:
    """The error of ``act`` for a user without permissions."""
    with as_nobody(quick_path):
        with pytest.raises(StorageError, match="denied") as caught:
            act()
        assert describe_caller() in caught.value.hint
        assert f"uid {os.geteuid()}" in caught.value.hint
    assert caught.value.is_denied
    assert not caught.value.retryable
    assert "repeated" not in caught.value.hint
    return caught.value


def test_the_missing_permission_is_named_with_its_path(quick_path: Path) -> None:
    place = LocalPlace(quick_path / "ck")
    place.put("state/0/a", b"x")
    folder, file = quick_path / "ck" / "state" / "0", quick_path / "ck" / "state" / "0" / "a"
    folder.chmod(0o555)
    for write in (
        lambda: place.put("state/0/b", b"x"),
        lambda: place.put_if_absent("state/0/b", b"x"),
        lambda: place.delete("state/0/a"),
        lambda: place.put("state/0/deep/er/b", b"x"),
    ):
        assert f"Give write (w) permission on {folder} to " in refuse(quick_path, write).hint
    file.chmod(0)
    for read in (lambda: place.get("state/0/a"), lambda: place.download("state/0/a", quick_path / "copy")):
        assert f"Give read (r) permission on {file} to " in refuse(quick_path, read).hint
    folder.chmod(0)
    for look in (lambda: place.list("state/0"), place.walk):
        assert f"Give read and search (rx) permission on {folder} to " in refuse(quick_path, look).hint
    assert f"Give search (x) permission on {folder} to " in refuse(quick_path, lambda: place.get("state/0/a")).hint
    folder.chmod(0o755)


def test_what_the_permission_bits_allow_may_be_forbidden_otherwise(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    place = LocalPlace(quick_path)
    place.put("a", b"x")
    monkeypatch.setattr(Path, "unlink", deny)
    with pytest.raises(StorageError, match="not permitted") as caught:
        place.delete("a")
    assert "immutable files" in caught.value.hint
    assert not caught.value.retryable
