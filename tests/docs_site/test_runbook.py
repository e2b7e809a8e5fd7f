"""What the runbook shows is what users see, and what it tells them to do helps."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from tests.pages.documents import ROOT
from tests.pages.steps import is_like

Call = Callable[..., tuple[int, str]]

TEXT = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
SAID_BY = {
    "did not answer '": "jvm-bridge/src/main/scala/org/apache/spark/sql/ckpt/server/StateServer.scala",
    "it ended with status ": "jvm-bridge/src/main/scala/org/apache/spark/sql/ckpt/server/StateServer.scala",
    "the state server ended; starting another one": "jvm-bridge/src/main/scala",
    "The state server cannot use its local folder": "state_store/server/process.py",
    " answers again, after ": "state_store/blobs/base/retries.py",
    "was damaged: it was written again from a local copy": "state_store/retention/scrub.py",
    "bytes will take longer than restoreTarget, however often snapshots": "state_store/server/maintenance.py",
    "has taken its place.": "jvm-bridge/src/main/scala/org/apache/spark/sql/ckpt/fence/Runs.scala",
    "is gone, or is that of another run": "jvm-bridge/src/main/scala/org/apache/spark/sql/ckpt/fence/Runs.scala",
}


class Counts(ckpt.KeyedProcessor):
    n = ckpt.ValueState("n", "bigint", default=0)
    items = ckpt.ListState("items", "int")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.n.update(self.n.value() + len(rows))
        self.items.add_all(row.item for row in rows)
        yield key.user, self.n.value()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Eight batches, in which one user has most rows."""
    stream = ckpt.testing.keyed("user string, item int", by="user", uid="counts", parallelism=4, folder=str(tmp_path))
    with stream.process(Counts(), "user string, n bigint") as harness:
        for _ in range(8):
            harness.run([(f"user {at % 97}", at) for at in range(200)] + [("hot", at) for at in range(700)])
        return Path(harness.checkpoint)


def _shown(after: str) -> list[str]:
    """The outputs that the section of this title shows."""
    section = TEXT.partition(f"\n## {after}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command; the exit code, and what it prints."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def run(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        code = main([str(each) for each in arguments])
        return code, "".join(capfd.readouterr())

    return run


@pytest.mark.parametrize("message", SAID_BY)
def test_a_message_that_is_shown_is_in_the_code(message: str) -> None:
    assert message in " ".join(TEXT.split())
    where = ROOT / SAID_BY[message]
    files = sorted(where.rglob("*.scala")) if where.is_dir() else [where]
    assert any(message in file.read_text(encoding="utf-8") for file in files)


def test_damage_is_shown_and_an_older_version_goes_on(checkpoint: Path, tmp_path: Path, call: Call) -> None:
    damaged = max(checkpoint.glob("state/0/3/00000000000000000008-*.delta"))
    content = bytearray(damaged.read_bytes())
    content[200] ^= 0xFF
    damaged.write_bytes(content)
    line, verified, mended = _shown("Damage is found")
    code, output = call("checkpoint", "verify", checkpoint)
    assert code == 1
    assert is_like(verified, output), output
    code, output = call("savepoint", "create", checkpoint, tmp_path / "saved")
    assert code == 1
    assert is_like(f"...{line.strip()}...", output), output
    _, output = call("checkpoint", "verify", checkpoint, "--version", 7)
    code, branched = call("checkpoint", "branch", checkpoint, tmp_path / "branched", "--batch", 6)
    assert code == 0
    assert is_like(f"{mended.strip()}...", output + branched), output + branched
    assert call("checkpoint", "verify", tmp_path / "branched")[0] == 0


def test_a_version_that_is_gone_is_refused(checkpoint: Path, call: Call) -> None:
    code, output = call("state", "count", checkpoint, "--uid", "counts", "--state", "n", "--version", 99)
    assert code == 2
    assert is_like(_shown("Retention has passed")[0], output), output


def test_a_hot_key_is_seen(checkpoint: Path, tmp_path: Path, call: Call) -> None:
    _, output = call("checkpoint", "inspect", checkpoint)
    shown = re.sub(r"7,010|2\.80", "...", _shown("A hot key")[0])
    assert is_like(shown, output), output
    assert call("savepoint", "create", checkpoint, tmp_path / "saved")[0] == 0
    code, output = call("savepoint", "restore", tmp_path / "saved", tmp_path / "new", "-n", 8, "--dry-run")
    assert code == 0
    assert "rows with indexes of each new partition of operator 0, counted" in output


def test_a_place_that_does_not_answer_is_named(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    where = ("s3://bucket/checkpoint", "-o", "s3Endpoint=http://127.0.0.1:1", "-o", "s3Region=eu-north-1")
    code, output = call("checkpoint", "list", *where, "-o", "placeTimeout=3")
    assert code == 1
    waiting, _, failed = _shown("A place cannot be reached")
    waiting = waiting.strip().replace("07:32:05", "...").replace("60 s", "3 s")
    assert is_like(waiting, caplog.messages[0])
    assert is_like(failed, output), output


def test_going_back_to_a_savepoint(checkpoint: Path, tmp_path: Path, call: Call) -> None:
    assert call("savepoint", "create", checkpoint, tmp_path / "saved")[0] == 0
    assert call("savepoint", "verify", tmp_path / "saved")[0] == 0
    assert call("savepoint", "restore", tmp_path / "saved", tmp_path / "new")[0] == 0
    assert call("checkpoint", "verify", tmp_path / "new")[0] == 0


def _conditions() -> dict[str, Any]:
    """Spark's errors by name, as the installed release has them."""
    for jar in (Path(pyspark.__path__[0]) / "jars").glob("spark-common-utils_*.jar"):
        with zipfile.ZipFile(jar) as archive:
            known: dict[str, Any] = json.loads(archive.read("error/error-conditions.json"))
            return known
    raise AssertionError("PySpark has no jar with the names of errors.")


def test_names_of_errors_are_those_of_spark() -> None:
    if pyspark.__version__ < "4.3":
        pytest.skip("The runbook has the names of Spark 4.3.")
    known = _conditions()
    section = TEXT.partition("\n## Spark's errors by name\n")[2].partition("\n## ")[0]
    names = re.findall(r"`([A-Z][A-Z_]+(?:\.[A-Z_]+)?)`", section)
    assert len(names) > 30
    for name in names:
        main, _, sub = name.partition(".")
        assert main in known, name
        assert not sub or sub in known[main]["subClass"], name


def test_errors_that_are_under_a_name_of_spark_are_explained() -> None:
    scala = ROOT / "jvm-bridge/src/main/scala"
    used = {
        name
        for file in scala.rglob("*.scala")
        for name in re.findall(r"under\(\s*\"([A-Z_.]+)\"", file.read_text(encoding="utf-8"))
    }
    assert used
    assert not [name for name in used if f"`{name}`" not in TEXT]
