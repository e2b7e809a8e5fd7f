"""Which store is called, and on whose behalf."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """Which store this is, for messages."""

    operator: int
    partition: int
    name: str

    def __str__(self) -> str:
        """Return the form used in messages."""
        return f"operator {self.operator}, partition {self.partition}, store {self.name!r}"

    @property
    def short(self) -> str:
        """The form used in log lines."""
        return f"{self.operator}/{self.partition}/{self.name}"

    @property
    def key(self) -> str:
        """The form used in names of tasks and objects."""
        return f"{self.operator}-{self.partition}-{self.name}"


@dataclass(frozen=True)
class Caller:
    """On whose behalf a call is made: one provider instance of one run.

    ``epoch``: of the run, if its driver has taken one; else 0.
    """

    run_id: str
    format: int
    min_versions_to_retain: int
    epoch: int = 0
