"""``python -m integration.places``: how fast places are, on the services of the tests, interleaved in one process.

Prints medians: writing and reading 64 MB, and 100 small objects that are created one after the other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from pyspark_ckpt.state_store.blobs import BlobPlace, S3Settings, place_at
from tests.services.cloud_services import running_azure, running_gcs
from tests.services.s3_server import running

LARGE_BYTES, PIECE_BYTES = 64 << 20, 1 << 20
SMALL, SMALL_BYTES = 100, 20_000


def main(rounds: int) -> None:
    """Measure all places ``rounds`` times, after one round that does not count."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3 = stack.enter_context(running(folder / "s3"))
        settings = S3Settings(endpoint=s3.endpoint, addressing="path")
        places = {
            "file system": place_at(str(folder / "files")),
            "S3, versitygw": place_at(s3.new_folder(), settings),
            "Google, fake-gcs-server": place_at(stack.enter_context(running_gcs(folder / "gcs")).new_folder()),
            "Azure, Azurite": place_at(stack.enter_context(running_azure(folder / "azure")).new_folder()),
        }
        for number in range(rounds + 1):
            for name, place in places.items():
                for what, took in measure(place, folder / "copy").items():
                    if number:
                        seconds[name, what].append(took)
        print("| place | 64 MB written | 64 MB read | 100 objects of 20 kB created |\n|---|---|---|---|")
        for name in places:
            medians = [f"{statistics.median(seconds[name, what]):.2f} s" for what in ("write", "read", "small")]
            print(f"| {name} | {' | '.join(medians)} |")


def measure(place: BlobPlace, copy: Path) -> dict[str, float]:
    """Return the seconds that a large object took each way, and small ones together. Deletes them."""
    run, piece, small = uuid.uuid4().hex, os.urandom(PIECE_BYTES), os.urandom(SMALL_BYTES)

    def write() -> None:
        with place.create(f"{run}/large") as sink:
            for _ in range(LARGE_BYTES // PIECE_BYTES):
                sink.write(piece)

    def create() -> None:
        for number in range(SMALL):
            place.put_if_absent(f"{run}/{number}", small)

    steps: dict[str, Callable[[], object]] = {
        "write": write,
        "read": lambda: place.download(f"{run}/large", copy),
        "small": create,
    }
    found = {}
    for what, step in steps.items():
        began = time.perf_counter()
        step()
        found[what] = time.perf_counter() - began
    for blob in place.list(run):
        place.delete(blob.name)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    main(parser.parse_args().rounds)
