"""A whole checkpoint with one changed byte, in each of its files: what is shown is what was written, or nothing."""

from __future__ import annotations

from pathlib import Path

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.verification import verify_version
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.options import parse
from tests.compat.contents import digests
from tests.compat.frozen import unpack
from tests.labs.lab import damage


def test_a_damaged_byte_in_any_file_is_never_shown_as_state(tmp_path: Path) -> None:
    folder = unpack("v1", "store-format-2", tmp_path / "checkpoint")
    checkpoint = Checkpoint(str(folder), parse({}))
    (identity,) = (identity for _, identity in checkpoint.stores())
    newest = checkpoint.newest_version
    right = digests(folder, newest)
    refused, noticed = [], []
    for path in sorted(path for path in (folder / "state" / "0" / "0").rglob("*") if path.is_file()):
        whole = path.read_bytes()
        damage(path)
        try:
            assert digests(folder, newest) == right, path.name
        except CkptError:
            refused.append(path.name)
        problems = verify_version(checkpoint, identity, newest).problems
        if problems:
            assert path.name in " ".join(problems)
            noticed.append(path.name)
        path.write_bytes(whole)
    assert refused
    assert set(refused) <= set(noticed)
    assert any(name.endswith(".snapshot") for name in noticed)
    assert any(name.endswith(".sst") for name in noticed)
    assert digests(folder, newest) == right
