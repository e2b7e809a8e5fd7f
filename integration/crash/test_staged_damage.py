"""Staged files that are damaged while a batch commits: the task is tried again, and state and output are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from integration.crash.driver import Driver, Relay
from integration.crash.faults import NEWEST, all_armed
from integration.crash.reference import Reference, order

POINT = "commit.before_upload"


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": _flip,
    "cut in half": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "zeros": lambda content: bytes(len(content)),
}


def _harm_staged_files(driver: Driver, pattern: str, harm: Callable[[bytes], bytes]) -> int:
    """Damage the table files that wait for their upload; how many there were."""
    found = 0
    for path in (driver.folder / "local").glob(f"ckpt-*/server/staging/*/{pattern}"):
        content = path.read_bytes()
        path.write_bytes(harm(content))
        found += content != harm(content)
    return found


@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.parametrize(
    ("name", "pattern", "harm"),
    [
        pytest.param("windows", "shim.sst", "a flipped bit", marks=pytest.mark.matrix),
        ("join", "shim.sst", "zeros"),
        pytest.param("dedup", "shim.sst", "empty", marks=pytest.mark.matrix),
        ("groups", "shim.sst", "cut in half"),
        ("keyed", "worker-*.sst", "a flipped bit"),
        pytest.param("keyed", "worker-*.sst", "cut in half", marks=pytest.mark.matrix),
    ],
)
def test_a_batch_is_tried_again_when_what_it_has_staged_is_damaged(
    name: str, pattern: str, harm: str, local: Relay, reference: Reference, tmp_path: Path
) -> None:
    reference.start_from_half(name, NEWEST, tmp_path)
    driver = local.driver()
    driver.lose_local_state()
    driver.send("run", runs=[order(name, tmp_path, conf=all_armed((POINT,), "hold", NEWEST))])
    held = driver.await_fired(POINT)
    assert _harm_staged_files(driver, pattern, HARMS[harm])
    held.unlink()
    driver.receive()
    assert "is damaged" in driver.log()
    assert "Nothing was committed, and the task is tried again" in driver.log()
    reference.check(driver, name, tmp_path)
