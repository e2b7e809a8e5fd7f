"""``pyspark-ckpt query serve``: a web page about checkpoints, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from pyspark_ckpt.state_store.blobs import RetryPolicy, with_retries
from pyspark_ckpt.state_store.checkpoints.folder_kind import is_missing
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.possession import LOOK_S
from pyspark_ckpt.terminal import print_notice, print_text
from pyspark_ckpt.web import serve_web_page


def serve_checkpoints(
    checkpoints: Sequence[str],
    settings: dict[str, str],
    *,
    port: int,
    host: str,
    allowed_hosts: Sequence[str] | None,
    savepoints: Sequence[str],
) -> int:
    """Print where the page is and which folders are missing, and serve it until the program is interrupted."""
    with serve_web_page(
        list(checkpoints),
        port=port,
        host=host,
        allowed_hosts=allowed_hosts or (),
        savepoints=savepoints,
        options=settings,
    ) as page:
        print(page.url, flush=True)
        print_text("The URL has the token that opens the page. Ctrl-C ends it.")
        for each in (*checkpoints, *savepoints):
            _tell_if_missing(each, settings)
        sys.stdout.flush()  # into a pipe, too: it is read while the page is served
        page.wait()
    return 0


def _tell_if_missing(location: str, settings: dict[str, str]) -> None:
    """Print that a folder is missing. The page shows it once it exists."""
    with suppress(CkptError):  # out of reach: the page says so
        place = with_retries(Workplace(parse(settings)).resolve(location), RetryPolicy(LOOK_S))
        if is_missing(place):
            print_notice(f"pyspark-ckpt: {place.url} does not exist. The page shows it once it exists.")
