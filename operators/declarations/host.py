"""What a keyed operator needs from its host: a Spark query, or a test without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ckpt.operators.declarations.operator import KeyedOperator
    from pyspark_ckpt.operators.declarations.processors import KeyedProcessor, VectorProcessor

Result_co = TypeVar("Result_co", covariant=True)


class Conf(Protocol):
    """Settings, by Spark's names."""

    def get(self, key: str, default: str | None = ...) -> str | None:
        """Return a setting, or the default that Spark gives it; ``default`` if it has none."""
        ...


class InitialState(Protocol):
    """Rows of an initial state, whose keys are named as in the first input."""

    @property
    def schema(self) -> StructType:
        """Its columns."""
        ...


class Host(Protocol[Result_co]):
    """Runs keyed operators."""

    @property
    def conf(self) -> Conf:
        """The settings that operators run with."""
        ...

    def read_initial(self, given: Any, by: Sequence[str], who: str) -> InitialState:
        """Return the initial state that a user gave. Raises InvalidInputError about ``who``."""
        ...

    def start(
        self,
        operator: KeyedOperator,
        processor: KeyedProcessor | VectorProcessor,
        output: StructType,
        mode: str,
        initial: Any,
    ) -> Result_co:
        """Run an operator. ``initial``: the result of ``read_initial``; None without an initial state."""
        ...
