"""Distinguish damage of a local copy from a machine that has run out of a resource.

If reading a local copy fails, it is discarded, because a retry on the same files would fail, too. Everything in it is
also in the remote place. The copy is kept if other files would fail in the same way, because a restore would not help.
Missing permission to read a file counts as damage of the copy: restored files belong to this user again.
"""

from __future__ import annotations

import errno
import os

_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_OF_THE_MACHINE = tuple(map(os.strerror, _EXHAUSTED))
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))


def is_of_the_copy(failure: object) -> bool:
    """Return whether ``failure``, an error of RocksDB or of the system, is due to the files of a local copy."""
    text = str(failure)
    return not any(words in text for words in _OF_THE_MACHINE)


def is_full(failure: object) -> bool:
    """Return whether ``failure``, an error of RocksDB or of the system, says that a disk or a quota is full."""
    text = str(failure)
    return any(words in text for words in _FULL)
