"""Who makes the requests to a place, for messages about missing permissions."""

from __future__ import annotations

import os
import pwd
from socket import gethostname


def describe_caller() -> str:
    """Return the user of this process and its host, such as "user ann (uid 1000) on host7"."""
    uid = os.geteuid()
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid}) on {gethostname()}"
    except KeyError:  # a container may run as a user that its system does not list
        return f"uid {uid} on {gethostname()}"
