"""The life of a keyed query whose local files lose a bit now and then, with snapshots and retention on.

No row is ever wrong, no version is ever lost, and every batch gets through after a few attempts: what is damaged is
healed from the remote place. ``CKPT_FLIPS=1000`` flips so many bits for each seed.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators.declarations.states import MapState, ValueState
from pyspark_ckpt.operators.session import views
from pyspark_ckpt.state_store.errors import CkptError
from tests.labs.lab import CallError, Lab
from tests.labs.session_lab import SessionLab, suffix_of

FLIPS = int(os.environ.get("CKPT_FLIPS", "60"))
MAX_ATTEMPTS = 8
USERS = [f"user {number}" for number in range(60)]
STATES = {
    "text": (ValueState("text", "string"), {"value": pa.string()}),
    "map": (MapState("map", "string", "bigint"), {"key": pa.string(), "value": pa.int64()}),
}
READ_PART = 0.3
"""Of the users, so many are looked at in a batch: the others' rows stay cold."""


class Life:
    """A query, what its states must be, and a disk that flips bits."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.choose = random.Random(seed)
        self.query = SessionLab(folder / "unused", STATES)
        self.query.close()
        self.query.lab = Lab(folder, retentionGracePeriod="0", memoryLimit="32m")
        self.open()
        self.texts: dict[str, str] = {}
        self.maps: dict[str, dict[str, int]] = {user: {} for user in USERS}
        self.flipped: Counter[str] = Counter()
        self.failures: list[str] = []
        self.flips_left = FLIPS

    @property
    def lab(self) -> Lab:
        return self.query.lab

    def open(self) -> None:
        self.query.handle = self.lab.open(keep=2)

    def flip(self) -> None:
        """Flip one bit of some local file."""
        if self.choose.random() < 0.5:
            self.lab.server.settled()  # else while the live database follows the last commit
        files = [Path(folder, name) for folder, _, names in os.walk(self.lab.local_dir) for name in names]
        path = self.choose.choice(sorted(files))
        with suppress(FileNotFoundError):  # what is being tidied up
            before = path.stat()
            if not before.st_size:
                return
            with path.open("r+b") as file:
                at = self.choose.randrange(before.st_size)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << self.choose.randrange(8)]))
            if self.choose.random() < 0.5:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            self.flipped[path.suffix or path.name.partition("-")[0]] += 1
            self.flips_left -= 1

    def batch(self) -> None:
        """Have a batch committed, in as many attempts as Spark would make at most."""
        texts = {user: self.choose.randbytes(60).hex() for user in self.choose.sample(USERS, 4)}
        entries = {user: {f"entry {self.choose.randrange(9)}": self.choose.randrange(99)} for user in texts}
        for _ in range(MAX_ATTEMPTS):
            if self.attempt(texts, entries):
                break
        else:
            pytest.fail(f"{MAX_ATTEMPTS} attempts failed: {self.failures[-MAX_ATTEMPTS:]}")
        self.texts |= texts
        for user, more in entries.items():
            self.maps[user] |= more

    def attempt(self, texts: dict[str, str], entries: dict[str, dict[str, int]]) -> bool:
        number = None
        begin = self.lab.server.call

        def noticing(method: str, **request: object) -> dict[str, Any]:
            nonlocal number
            answer = begin(method, **request)
            number = answer.get("txn", number)
            return answer

        self.lab.server.call = noticing  # type: ignore[method-assign]
        try:
            batch, states = self.query.begin()
            self.work(batch, states, texts, entries)
            self.query.commit(batch)
        except (CkptError, CallError, OSError) as problem:
            self.failures.append(str(problem))
            if number is not None:
                begin("abort", txn=number)
            return False
        finally:
            del self.lab.server.call
        return True

    def work(self, batch: Any, states: Any, texts: dict[str, str], entries: dict[str, dict[str, int]]) -> None:  # noqa: ANN401
        try:
            read = {user for user in USERS if self.choose.random() < READ_PART} | texts.keys()
            for user in sorted(read, key=suffix_of):
                batch.at(user)
                assert states["text"].value() == self.texts.get(user), user
                assert dict(states["map"].items()) == self.maps[user], user
                if user in texts:
                    states["text"].update(texts[user])
                    states["map"].put_all(entries[user])
            batch.stage()
        finally:
            batch.session.close()

    def maintain(self) -> None:
        for method, more in (("snapshot", {"force": True}), ("cleanup", {}), ("cleanup", {})):
            try:
                self.lab.server.call(method, handle=self.query.handle, **more)
            except CallError as problem:
                assert problem.kind in ("DamagedCopyError", "FormatError", "StorageError"), problem  # noqa: PT017
                self.failures.append(str(problem))

    def restart(self, *, lose_local: bool = False) -> None:
        for view in views._views.values():
            view.reader.close()
        views._views.clear()
        self.lab.server.settled()
        self.lab.restart(lose_local=lose_local)
        self.open()

    def require_all(self) -> None:
        """All of it is in the remote place alone."""
        self.restart(lose_local=True)
        batch, states = self.query.begin()
        for user in sorted(USERS, key=suffix_of):
            batch.at(user)
            assert states["text"].value() == self.texts.get(user)
            assert dict(states["map"].items()) == self.maps[user]
        batch.session.close()
        batch.abort()


@pytest.mark.parametrize("seed", range(int(os.environ.get("CKPT_FLIP_SEEDS", "2"))))
def test_no_row_is_wrong_and_no_version_is_lost_when_local_bits_flip(quick_path: Path, seed: int) -> None:
    life = Life(quick_path, seed)
    try:
        while life.flips_left > 0:
            life.batch()
            for _ in range(life.choose.choice([0, 1, 1, 3])):
                life.flip()
            if life.choose.random() < 0.3:
                life.maintain()
            if life.choose.random() < 0.05:
                life.restart()
            if life.choose.random() < 0.03:
                life.require_all()
        life.batch()
        life.maintain()
        life.require_all()
        print(f"seed {seed}: {dict(life.flipped)}; {len(life.failures)} failures")
    finally:
        life.query.close()
