"""A program whose forked processes read at a place at the same time as itself.

``python -m tests.labs.forked_readers URL OPTIONS`` ends with status 0 if all have read what was written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.options import parse

SMALL = [bytes([number]) * 3000 for number in range(100)]
LARGE = os.urandom(1 << 20) * 20
CHILDREN = 3
READS = 200
MAX_S = 60


def read_all(place: BlobPlace, first: int) -> None:
    """Read small objects, and a large one by the threads of the process."""
    signal.alarm(MAX_S)
    for read in range(first, first + READS):
        number = read % len(SMALL)
        assert place.get(str(number)) == SMALL[number], "the answer to somebody else"
    with tempfile.TemporaryDirectory() as folder:
        place.download("large", Path(folder, "large"))
        assert Path(folder, "large").read_bytes() == LARGE


def main() -> None:
    """Write, read, and let forked processes read."""
    place = Workplace(options=parse(json.loads(sys.argv[2]))).place(sys.argv[1])
    for number, data in enumerate(SMALL):
        place.put(str(number), data)
    place.put("large", LARGE)
    read_all(place, 0)
    children = []
    for number in range(CHILDREN):
        child = os.fork()
        if child == 0:
            read_all(place, number * 31)
            os._exit(0)
        children.append(child)
    read_all(place, 7)
    ended = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(f"processes ended with {ended}" if any(ended) else 0)


if __name__ == "__main__":
    main()
