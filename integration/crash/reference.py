"""The outcome of the queries without faults, and the comparison with it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.crash import workload
from integration.crash.driver import FORMAT, Driver
from integration.crash.faults import FORMATS
from integration.crash.workload import GIVEN


@dataclass(frozen=True)
class Outcome:
    """What a query came to: the rows of every batch, and its state."""

    output: dict[str, str]
    state: list[list[str]]


@dataclass(frozen=True)
class Reference:
    """Checkpoint and output of the first half of each query in either format, and the outcome of all of it."""

    halves: Path
    outcomes: dict[str, Outcome]

    def start_from_half(self, name: str, version: int, folder: Path) -> None:
        """Put the checkpoint and the output of the first three batches, in a format, below ``folder``."""
        shutil.copytree(self.halves / f"v{version}" / name, folder / name)

    def check(
        self, driver: Driver, name: str, folder: Path, conf: Mapping[str, str] | None = None, checkpoint: str = ""
    ) -> None:
        """Fail unless output and state of a finished query, read with ``conf``, are those of the run without faults."""
        assert read_output(folder / name) == self.outcomes[name].output
        assert driver.state(name, folder / name, conf, checkpoint) == self.outcomes[name].state
        assert driver.lock_trouble() == []


def made(driver: Driver, root: Path) -> Reference:
    """Run every query once without faults, in both checkpoint formats for the first half; they must agree."""
    reference = Reference(root / "halves", {})
    half = [
        order(name, reference.halves / f"v{version}", conf={FORMAT: str(version)}, until=workload.BATCHES // 2)
        for version in FORMATS
        for name in workload.QUERIES
    ]
    driver.run(*half)
    for name in workload.QUERIES:
        reference.start_from_half(name, FORMATS[-1], root)
    driver.run(*(order(name, root) for name in workload.QUERIES))
    for name in workload.QUERIES:
        outcome = Outcome(read_output(root / name), driver.state(name, root / name))
        first, *others = (read_output(reference.halves / f"v{version}" / name) for version in FORMATS)
        assert all(first == other for other in others)
        assert len(outcome.output) == workload.BATCHES
        assert all(outcome.state)
        reference.outcomes[name] = outcome
    _require_initial_state(reference.outcomes["keyed"].output)
    return reference


def _require_initial_state(output: Mapping[str, str]) -> None:
    """Fail unless the keyed query has had its initial state in the first batch alone."""
    assert {batch: count for batch, text in output.items() if (count := text.count("total=None"))} == {"0": GIVEN}
    assert all("'given': 1" in text and "'given': 2" not in text for text in output.values())


def read_output(folder: Path) -> dict[str, str]:
    """The rows of every batch, by batch."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("output/*.json"))}


def order(name: str, folder: Path, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """The arguments of a run of query ``name`` below ``folder``."""
    return {"name": name, "folder": str(folder / name), **arguments}
