"""``python -m pyspark_ckpt``: the command line."""

from __future__ import annotations

import sys

from pyspark_ckpt.cli.main import main

sys.exit(main())
