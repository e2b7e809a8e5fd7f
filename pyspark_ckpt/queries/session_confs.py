"""The session of a process, and temporary changes to the confs of a query's session in the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def find_session() -> SparkSession | None:
    """Return the session of this thread, or that of the process: only the first thread has one of its own."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - see the docstring of the package
    from pyspark.sql import SparkSession  # noqa: PLC0415

    try:
        session = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        return None
    context = getattr(session, "_sc", None)
    return None if context is not None and context._jsc is None else session  # noqa: SLF001 - it was stopped


class SessionConfs:
    """The confs of a session that were changed here, and their former values."""

    def __init__(self, session: Any) -> None:  # noqa: ANN401 - an object of the JVM
        """``session``: the JVM's."""
        self._session = session
        self._before: dict[str, str | None] = {}

    def read(self, name: str, default: str | None = None) -> str | None:
        """Return the value of a conf, or ``default``."""
        found = self._session.conf().getOption(name)
        return str(found.get()) if found.isDefined() else default

    def is_set(self, name: str) -> bool:
        """Return whether a conf has a value that is not its default."""
        return bool(self._session.sessionState().conf().contains(name))

    def set(self, name: str, value: str) -> None:
        """Set a conf."""
        if name not in self._before:
            self._before[name] = self.read(name) if self.is_set(name) else None
        self._session.conf().set(name, value)

    def undo(self) -> None:
        """Restore the former value of every conf that was set here, or unset it if it had none."""
        for name, value in self._before.items():
            if value is None:
                self._session.conf().unset(name)
            else:
                self._session.conf().set(name, value)
        self._before.clear()
