"""The account of a machine of Google whose metadata server does not answer at first, as in a pod that just began."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.services.cloud_services import CloudService
from tests.services.http_service import serving_http

ACCOUNT = {"email": "account@project.iam", "scopes": [], "aliases": ["default"]}
TOKEN = {"access_token": "SECRET", "expires_in": 3600, "token_type": "Bearer"}
REFUSALS = 5
"""How many requests Google's own client makes before it gives up."""
PROGRAM = """
import sys
from pyspark_ckpt.state_store.blobs import HadoopSettings, place_at

settings = {"fs.gs.auth.type": "COMPUTE_ENGINE", "fs.gs.storage.root.url": sys.argv[2]}
place = place_at(sys.argv[1], hadoop=HadoopSettings(settings))
assert place.put_if_absent("a", b"x")
assert place.get("a") == b"x"
"""


class _Handler(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        content = json.dumps(TOKEN if "/token" in self.path else ACCOUNT).encode()
        kind = "application/json"
        if "universe" in self.path:
            content, kind = b"googleapis.com", "text/plain"
        self.send_response(503 if len(self.asked) <= REFUSALS else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:  # noqa: ANN401
        """Say nothing."""


@pytest.fixture
def machine() -> Iterator[tuple[str, list[str]]]:
    """Where the metadata of the machine is, and what was asked there."""
    asked: list[str] = []
    with serving_http(type("Handler", (_Handler,), {"asked": asked})) as port:
        yield f"127.0.0.1:{port}", asked


@pytest.mark.in_turn
def test_a_machine_that_does_not_tell_its_account_yet_is_waited_for(
    gcs: CloudService, machine: tuple[str, list[str]]
) -> None:
    host, asked = machine
    environment = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, gcs.new_folder(), gcs.endpoint],
        env={**environment, "GCE_METADATA_HOST": host},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "has not answered" in done.stderr
    assert "SECRET" not in done.stderr
    assert len(asked) > REFUSALS
