"""What is decoded first by many threads at once, as the deltas of a restore are."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
import msgspec
from pyspark_ckpt.state_store.json_objects import decode_as

sys.setswitchinterval(1e-6)
for number in range(100):
    fields, where = [("a", "int"), ("b", "str | None", None)], {"__module__": "builtins"}
    inner = msgspec.defstruct(f"Inner{number}", fields, namespace=where)
    kind = msgspec.defstruct(f"Outer{number}", [("x", inner), ("y", tuple[inner, ...], ())])
    start = threading.Barrier(8)

    def read():
        start.wait()
        assert decode_as(b'{"x":{"a":1}}', kind, "it").x.a == 1

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_process_lives_when_many_threads_decode_a_type_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
