"""``python -m pyspark_ckpt.state_store.server``: run a state server for the JVM that started this process."""

import sys

from pyspark_ckpt.state_store.server.process import main

sys.exit(main())
