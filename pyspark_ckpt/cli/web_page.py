"""``pyspark-ckpt query serve``: a web page about checkpoints, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark_ckpt.terminal import print_text
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
    """Print where the page is, and serve it until the program is interrupted."""
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
        sys.stdout.flush()  # into a pipe, too: it is read while the page is served
        page.wait()
    return 0
