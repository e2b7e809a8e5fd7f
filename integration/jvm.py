"""Options of the JVMs of tests: most of them live for seconds, in which half of their work is to load classes.

So classes come from an archive, which ``make`` has ``integration.class_archive`` write. A JVM of another version, or
with another class path, goes without it.
"""

from __future__ import annotations

from pathlib import Path

from tests.services.java_program import SHORT_LIFE

ARCHIVE = Path(__file__).resolve().parents[1] / ".tools" / "spark.jsa"
SILENT = "-Xlog:cds*=off"
"""It is no concern of a test whether there is an archive: stdout stays its own."""
CODE_CACHE = "-XX:ReservedCodeCacheSize=256m"
"""The default of a JVM that compiles little is too little for Spark: it would forget what it has compiled."""
_ARCHIVED = [f'-XX:SharedArchiveFile="{ARCHIVE}"', SILENT] if ARCHIVE.is_file() else []
JAVA_OPTIONS = " ".join([*SHORT_LIFE, CODE_CACHE, *_ARCHIVED])
