"""How long random tests look for a case that goes wrong: ``CKPT_FUZZ=50`` makes each 50 times as long.

Tests of readers of bytes, in ``tests/fuzz``, and those of states and table files against a model have it.
"""

from __future__ import annotations

import os

TIMES = int(os.environ.get("CKPT_FUZZ", "1"))
