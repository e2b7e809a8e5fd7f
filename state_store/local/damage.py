"""Whether a failure says that a local copy of state is damaged, or only that the machine has run out of something.

A local copy is discarded when reading it fails, for a retry on the same files would fail as well; all of it is in the
remote place. It is kept where the failure would be the same with other files: a restore is of no use then. Files that
may not be read are those of the copy: what is restored is this user's own again.
"""

from __future__ import annotations

import errno
import os

_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_OF_THE_MACHINE = tuple(map(os.strerror, _EXHAUSTED))


def is_of_the_copy(failure: object) -> bool:
    """Whether a ``failure`` to read a local copy, in the words of RocksDB or of the system, is one of its files."""
    text = str(failure)
    return not any(words in text for words in _OF_THE_MACHINE)
