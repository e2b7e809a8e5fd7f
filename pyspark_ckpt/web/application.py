"""The pages: what each URL shows, as HTML or, with ``?format=json``, as JSON; and how failures are shown."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pyspark_ckpt.offline.descriptions.json_forms import Fields
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError, NotFoundError, StorageError
from pyspark_ckpt.state_store.json_objects import MAX_LONG
from pyspark_ckpt.web import formats
from pyspark_ckpt.web.history import tell_history
from pyspark_ckpt.web.lookups import MAX_DIFF_ROWS, choose_state, compare, find_key, list_states, select
from pyspark_ckpt.web.overview import (
    NOT_WAITING,
    describe_error,
    describe_facts,
    describe_waiting,
    name_subject,
    sum_levels,
    summarize,
)
from pyspark_ckpt.web.partitions import count_groups, tell_partitions, tell_states
from pyspark_ckpt.web.progress import tell_pace
from pyspark_ckpt.web.recollection import Progress, Recollection
from pyspark_ckpt.web.retention import find_garbage, list_savepoints, tell_kept
from pyspark_ckpt.web.subjects import Facts, Subject

HERE = Path(__file__).parent
FIRST_WAIT_S, WAIT_S, LONG_WAIT_S = 1.5, 2.0, 4.0
"""How long the first page, other pages, and look-ups wait for answers that are still computed."""
HEAVY_AT_ONCE, HEAVY_WAIT_S = 2, 10.0
"""How many look-ups, comparisons and dry runs run at a time, and how long others wait for their turn."""
KEEP = 100
MAX_FIELD = 8 << 10
REFRESH_S = 5

Answer: TypeAlias = tuple[str, Fields]
"""The name of a template, and what it shows."""

_log = logging.getLogger("pyspark_ckpt.web")


class BusyError(CkptError):
    """Too much is computed at the moment."""

    default_retryable = True
    default_hint = "Reload the page in a moment."


@dataclass
class Pages:
    """The pages of some checkpoints."""

    subjects: Sequence[Subject]
    pool: ThreadPoolExecutor
    savepoint_folders: Sequence[str] = ()
    release: str = ""

    def __post_init__(self) -> None:
        """Make the templates, with everything escaped."""
        loader = jinja2.FileSystemLoader(HERE / "templates")
        self._templates = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._templates.filters |= formats.FILTERS
        self._templates.globals |= formats.FUNCTIONS
        self._by_number = {str(each.number): each for each in self.subjects}
        self._turns = threading.BoundedSemaphore(HEAVY_AT_ONCE)
        self._savepoints = Recollection[list[Fields]](self.pool, 30.0)
        self._garbage = [Recollection[Fields](each.pool, 60.0) for each in self.subjects]
        self._groups = [Recollection[Fields](each.pool, 60.0) for each in self.subjects]
        self._states = [Recollection[list[Fields]](each.pool, 3600.0) for each in self.subjects]

    def build(self) -> Starlette:
        """Return the application."""
        of_one = {
            "": self._show_one,
            "/progress": self._show_progress,
            "/history": self._show_history,
            "/states": self._show_states,
            "/partitions": self._show_partitions,
            "/kept": self._show_kept,
            "/key": self._show_key,
            "/diff": self._show_diff,
        }
        return Starlette(
            routes=[
                Route("/", self._guard(self._show_all)),
                *(Route(f"/c/{{number}}{path}", self._guard(show)) for path, show in of_one.items()),
                Mount("/static", StaticFiles(directory=HERE / "static")),
            ],
            exception_handlers={HTTPException: self._answer_http},
        )

    def prepare(self) -> None:
        """Read what the first page will show, in the background, and make its template."""
        self._templates.get_template("overview.html")
        threading.Thread(target=self._read_ahead, name="first page", daemon=True).start()

    def _read_ahead(self) -> None:
        with suppress(RuntimeError):  # the interpreter ends: no thread can be started any more
            self._summarize(0.0)

    def _guard(self, show: Callable[[Request], Answer]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            try:
                template, told = show(request)
                return self._render(request, template, told)
            except CkptError as problem:
                told = self._head(request, describe_error(problem))
                return self._render(request, "error.html", told, find_status(problem))
            except Exception:  # noqa: BLE001 - a defect of one page must not end the others; the log has it
                _log.exception("the page %s was not made", request.url.path)
                told = {
                    "kind": "InternalError",
                    "message": "This page could not be made, because of a defect in pyspark-ckpt.",
                    "hint": "Please report it, with the log of `pyspark-ckpt query serve`.",
                }
                return self._render(request, "error.html", self._head(request, told), 500)

        return answer

    def _head(self, request: Request, error: Fields) -> Fields:
        subject = self._by_number.get(str(request.path_params.get("number")))
        return {"checkpoint": None if subject is None else name_subject(subject), "error": error}

    def _answer_http(self, request: Request, problem: Exception) -> Response:
        status = problem.status_code if isinstance(problem, HTTPException) else 500
        error = {"kind": "NotFoundError", "message": "This page does not exist.", "hint": "Go to the overview."}
        return self._render(request, "error.html", {"checkpoint": None, "error": error}, status)

    def _render(self, request: Request, template: str, told: Fields, status: int = 200) -> Response:
        if request.query_params.get("format") == "json":
            return Response(json.dumps(_drop_infinite(told), indent=1), status, media_type="application/json")
        page = self._templates.get_template(template)
        shown = {
            "release": self.release,
            "refresh_s": REFRESH_S,
            "path": request.url.path,
            "several": len(self.subjects) > 1,
            "checkpoint": None,
            **told,
        }
        return HTMLResponse(page.render(shown), status)

    def _find(self, request: Request) -> Subject:
        number = str(request.path_params["number"])
        if number not in self._by_number:
            raise NotFoundError(f"This page has no checkpoint {number[:20]!r}.", hint="Go to the overview.")
        return self._by_number[number]

    def _open(self, request: Request) -> tuple[Subject, Facts, Fields]:
        subject = self._find(request)
        facts = subject.read_facts()
        return subject, facts, describe_facts(subject, facts)

    def _show_all(self, _request: Request) -> Answer:
        told = self._summarize(FIRST_WAIT_S)
        return "overview.html", {"checkpoints": told, "levels": sum_levels(told)}

    def _summarize(self, wait_s: float) -> list[Fields]:
        with ThreadPoolExecutor(len(self.subjects), thread_name_prefix="overview") as pool:
            return list(pool.map(lambda each: summarize(each, wait_s), self.subjects))

    def _show_one(self, request: Request) -> Answer:
        subject = self._find(request)
        subject.read_facts()  # raises, where the first page shows the rest
        told = summarize(subject, WAIT_S)
        if "error" in told:
            return "error.html", {"checkpoint": name_subject(subject), "error": told["error"]}
        return "checkpoint.html", {"checkpoint": told}

    def _show_progress(self, request: Request) -> Answer:
        subject, facts, told = self._open(request)
        return "progress.html", {"checkpoint": told, **tell_pace(subject, facts)}

    def _show_history(self, request: Request) -> Answer:
        subject, facts, told = self._open(request)
        return "history.html", {"checkpoint": told, **self._tell_history(subject, facts)}

    def _tell_history(self, subject: Subject, facts: Facts) -> Fields:
        if not facts.has_stores or not facts.version:
            empty = {"versions": [], "all_versions": 0, "day": None, "kept": None, "is_whole": True}
            return {**empty, **NOT_WAITING}
        return tell_history(subject, facts, WAIT_S)

    def _show_states(self, request: Request) -> Answer:
        subject, facts, told = self._open(request)
        return "states.html", {"checkpoint": told, **_require_version(facts, tell_states, subject)}

    def _show_partitions(self, request: Request) -> Answer:
        subject, facts, told = self._open(request)
        groups = self._count_groups(request, subject, facts) if request.query_params.get("groups") else None
        spread = _require_version(facts, tell_partitions, subject)
        return "partitions.html", {"checkpoint": told, "groups": groups, **spread}

    def _count_groups(self, request: Request, subject: Subject, facts: Facts) -> Fields:
        """Return the rows of an operator by key groups; ``rows``: None while they are counted."""
        operator = _read_number(request, "groups", 0, MAX_LONG, 0)
        metas = subject.read_metas(facts, LONG_WAIT_S)
        known = metas.value
        if known is None:
            return {"rows": None, **describe_waiting(metas)}

        def compute(progress: Progress) -> Fields:
            with self._take_turn():
                return count_groups(facts, known, operator, progress)

        counted = self._groups[subject.number].recall(operator, compute, LONG_WAIT_S)
        is_asked = counted.value is not None and counted.key == operator
        return {**((is_asked and counted.value) or {"rows": None}), **describe_waiting(counted)}

    def _show_kept(self, request: Request) -> Answer:
        subject, facts, told = self._open(request)
        keep = _read_number(request, "keep", 1, 10**9, KEEP)
        garbage: Fields | None = None
        waiting = NOT_WAITING
        if request.query_params.get("dry_run") and facts.saved is None:

            def compute(progress: Progress) -> Fields:
                with self._take_turn():
                    return find_garbage(facts, keep, subject.options, progress)

            found = self._garbage[subject.number].recall(keep, compute, LONG_WAIT_S)
            garbage, waiting = found.value, describe_waiting(found)
        saved: list[Fields] | None = []
        if self.savepoint_folders:
            saved = self._savepoints.recall("", lambda _: self._list_savepoints(subject), LONG_WAIT_S).value
        pins = tell_kept(facts)
        return "kept.html", {
            "checkpoint": told,
            "keep": keep,
            "garbage": garbage,
            "folders": saved or [],
            "is_listing": saved is None,
            "asked": bool(request.query_params.get("dry_run")),
            **pins,
            **waiting,
        }

    def _list_savepoints(self, subject: Subject) -> list[Fields]:
        return [list_savepoints(folder, subject.options) for folder in self.savepoint_folders]

    def _show_key(self, request: Request) -> Answer:
        subject, facts, told = self._open(request)
        states, waiting, operators, version = self._list_states(subject, facts)
        chosen = choose_state(states, request.query_params)
        found = problem = None
        given = [] if chosen is None else _read_fields(request, len(chosen["key"]))
        if chosen is not None and operators is not None and request.query_params.get("find"):
            try:
                with self._take_turn():
                    found = find_key(facts, operators, version, chosen, given)
            except (InvalidInputError, FormatError, NotFoundError) as wrong:
                problem = describe_error(wrong)
        return "key.html", {
            "checkpoint": told,
            "states": states,
            "chosen": chosen,
            "given": given,
            "found": found,
            "problem": problem,
            **waiting,
        }

    def _list_states(
        self, subject: Subject, facts: Facts
    ) -> tuple[list[Fields], Fields, Sequence[OperatorVersion] | None, int]:
        """Return the states with the columns of their keys, the progress of reading, and the metadata of all stores."""
        if not facts.version:
            return [], NOT_WAITING, None, 0
        metas = subject.read_metas(facts, LONG_WAIT_S)
        known = metas.value
        if known is None or (known.commit != facts.commit and known.version >= facts.version):
            return [], describe_waiting(metas), None, 0
        operators, version = known.operators, known.version
        listed = self._states[subject.number].recall(
            (known.commit, frozenset(known.damaged)),
            lambda _: list_states(facts, operators, version, known.damaged),
            LONG_WAIT_S,
        )
        return listed.value or [], describe_waiting(listed), operators, version

    def _show_diff(self, request: Request) -> Answer:
        subject, facts, told = self._open(request)
        states, waiting, _, _ = self._list_states(subject, facts)
        chosen = choose_state(states, request.query_params)
        other = self.subjects[_read_number(request, "other", 0, len(self.subjects) - 1, subject.number)]
        newest = facts.version
        before = _read_number(request, "a", 1, MAX_LONG, max(1, newest - 1))
        after = _read_number(request, "b", 1, MAX_LONG, newest if other is subject else 0)
        limit = _read_number(request, "rows", 1, MAX_DIFF_ROWS, 50)
        found = problem = None
        if chosen is not None and request.query_params.get("find"):
            try:
                with self._take_turn():
                    wanted = select(chosen)
                    found = compare((subject, other), (before, after or None), wanted, limit)
            except (InvalidInputError, FormatError, NotFoundError) as wrong:
                problem = describe_error(wrong)
        return "diff.html", {
            "checkpoint": told,
            "states": states,
            "chosen": chosen,
            "others": [name_subject(each) for each in self.subjects],
            "other": other.number,
            "a": before,
            "b": after,
            "rows": limit,
            "found": found,
            "problem": problem,
            **waiting,
        }

    @contextmanager
    def _take_turn(self) -> Iterator[None]:
        """Let only a few expensive requests run at a time. Raises BusyError."""
        if not self._turns.acquire(timeout=HEAVY_WAIT_S):
            raise BusyError("Other look-ups, comparisons and dry runs are under way.")
        try:
            yield
        finally:
            self._turns.release()


def _require_version(facts: Facts, tell: Callable[[Subject, Facts, float], Fields], subject: Subject) -> Fields:
    """Return a page's data on the newest version; nothing before the first."""
    if not facts.version:
        return {"operators": [], "problems": [], "version": None, **NOT_WAITING}
    return tell(subject, facts, LONG_WAIT_S)


def _read_number(request: Request, name: str, least: int, most: int, default: int) -> int:
    """Return a number of the query string. Raises InvalidInputError."""
    text = request.query_params.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:  # noqa: PLR2004
        raise InvalidInputError(f"{name} must be a whole number from {least} to {most}, got {text[:40]!r}.")
    return int(text)


def _read_fields(request: Request, number: int) -> list[str | None]:
    """Return what was typed for each column of a key; None for null. Raises InvalidInputError."""
    given: list[str | None] = []
    for column in range(number):
        text = request.query_params.get(f"k{column}", "")
        if len(text) > MAX_FIELD:
            raise InvalidInputError(f"The column {column} of the key has more than {MAX_FIELD} characters.")
        given.append(None if request.query_params.get(f"n{column}") else text)
    return given


def find_status(problem: CkptError) -> int:
    """Return the status of HTTP for a failure."""
    if isinstance(problem, BusyError | StorageError):
        return 503
    if isinstance(problem, NotFoundError):
        return 404
    return 400 if isinstance(problem, InvalidInputError) else 502


def _drop_infinite(told: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a value with null for numbers that JSON lacks."""
    if isinstance(told, Mapping):
        return {str(key): _drop_infinite(value) for key, value in told.items()}
    if isinstance(told, (list, tuple)):
        return [_drop_infinite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told
