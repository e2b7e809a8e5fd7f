"""Pages of checkpoints, served in this process to a client of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.operators.declarations.states import MapState, ValueState
from tests.compat.frozen import unpack
from tests.offline.reading.written import Written

Serve: TypeAlias = Callable[..., httpx.Client]
TOKEN = "a-token-of-the-tests"  # noqa: S105 - of pages that last as long as a test
IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "\"><script>alert('2')</script>"
LARGE = 10 << 20
STATES: Any = {
    "views": (ValueState("views", "long"), {"value": pa.int64()}),
    SCRIPT: (MapState(SCRIPT, "string", "string"), {"key": pa.string(), "value": pa.string()}),
    "large": (ValueState("large", "string"), {"value": pa.string()}),
}


def open_client(page: ckpt.monitoring.WebPage) -> httpx.Client:
    """A client that has the token."""
    base = page.url.partition("/?")[0]
    return httpx.Client(base_url=base, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve checkpoints; the client has the token."""
    with ExitStack() as stack:

        def start(*locations: object, **options: Any) -> httpx.Client:  # noqa: ANN401
            page = stack.enter_context(ckpt.monitoring.serve_web_page([*map(str, locations)], token=TOKEN, **options))
            return stack.enter_context(open_client(page))

        yield start


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a keyed operator, as the first release left it."""
    return unpack("v1", "keyed", tmp_path_factory.mktemp("web") / "keyed")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """A checkpoint whose names, keys and values are made to be taken for something else."""
    made = Written(tmp_path_factory.mktemp("web") / "<b>bold</b>", {"who": pa.string(), "n": pa.int32()}, 2, uid=IMAGE)

    def fill(states: Any) -> None:  # noqa: ANN401
        states.views.update(7)
        getattr(states, SCRIPT).put(SCRIPT, IMAGE)

    def fill_large(states: Any) -> None:  # noqa: ANN401
        states.large.update("x" * LARGE)

    made.batch(STATES, [((SCRIPT, 1), fill), (("plain", 2), fill)])
    made.snapshot()
    made.batch(STATES, [(("large", 3), fill_large)])
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(hostile: Written) -> Iterator[httpx.Client]:
    """The page of the hostile checkpoint."""
    with ckpt.monitoring.serve_web_page(hostile.path, token=TOKEN) as served, open_client(served) as client:
        yield client


@pytest.fixture(scope="module")
def frozen_page(frozen: Path) -> Iterator[ckpt.monitoring.WebPage]:
    """The page of a frozen checkpoint; other host names may be asked for."""
    with ckpt.monitoring.serve_web_page(str(frozen), token=TOKEN, allowed_hosts=["desk.example"]) as served:
        yield served
