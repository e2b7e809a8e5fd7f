"""What the failures of the HDFS client mean, in words of the error tree.

hdfs-native raises an ``OSError`` where it has no answer, or for a file that is there or is not, and a ``RuntimeError``
that holds the Java class and message, with a stack trace, where the name node has refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from pyspark_ckpt.state_store.blobs.base.patience import OutlastedError, fail_outlasted
from pyspark_ckpt.state_store.errors import InvalidInputError, NotFoundError, Outcome, StorageError

CLIENT_ERRORS = (OSError, RuntimeError, OutlastedError)
"""All that the client raises, and what comes of waiting for it."""


class DataNodeError(OSError):
    """The name node answers, and a data node does not."""


_ANSWER = re.compile(r'(?:Fatal)?RPCError\("(?P<java_class>[\w.$]+)", "(?P<text>.*?)(?:\\n|"\)$)', re.DOTALL)
_PATH = re.compile(r"""/[^\s"',;:()\[\]\\]*""")
"""The path of a file or folder, whose name may be any sign of something."""
_PACKAGES = ("fs", "hdfs.protocol", "hdfs.server.namenode", "security")
_REFUSALS = tuple(f"org.apache.hadoop.{package}." for package in _PACKAGES)
"""What a name node raises before it does anything. A router raises others where it had no answer itself."""

_PASSING_ANSWERS = (
    *("SafeModeException", "StandbyException", "RetriableException", "ObserverRetryOnActiveException"),
    *("NotReplicatedYetException", "RecoveryInProgressException", "AlreadyBeingCreatedException"),
    *("LeaseExpiredException", "NoLiveDataNode", "ServerTooBusyException", "NameNodeNotReady"),
    *("UnregisteredNodeException", "java.net.", "java.io.EOFException", "java.io.InterruptedIOException"),
    *("ConnectTimeoutException", "InterruptedException", "could only be written to 0 of the", "Zero blocklocations"),
    *("is not sufficiently replicated yet", "NameNode still not started", "not yet started", "is not ready"),
)
"""Signs of a refusal that ends by itself: the name node has just begun, or waits for data nodes."""
_PASSING_FAILURES = (
    *("DataTransferError", "OperationFailed", "BlocksNotFound", "blocks not found", "InvalidRPCResponse"),
    *("All nodes failed", "RPC listener", "Failed to complete file", "Block writer closed", "Pipeline stopped"),
    *("Block writer is closed", "No new datanode", "Failed to replay"),
)
"""Signs of a data node, or of a connection, that has gone while it was used."""
_WILL_NOT_PASS = ("SASL", "GSSAPI", "libgssapi", "UrlParseError", "erasure", "encryption zone")
_AWAY_NODES = re.compile(r'ip_addr: \\?"(?P<host>[^"\\]+)\\?".*?xfer_port: (?P<port>\d+)')

_TICKET = (
    "Every executor needs a Kerberos ticket that lasts: a ticket cache (KRB5CCNAME) that something renews, or a keytab "
    "(KRB5_CLIENT_KTNAME). Look with klist."
)
_CONF_DIR = "Set HADOOP_CONF_DIR, for the driver and every executor, to the folder of core-site.xml and hdfs-site.xml."
_AWAY = (
    "Look whether the name node and the data nodes run and are reached from this host; the option placeTimeout "
    "says how long they are waited for."
)
_HINTS: Mapping[str, str] = {
    # The first that is found in a failure counts.
    "a data node": "Start the data nodes, or let this host reach them: `hdfs dfsadmin -report` has their addresses.",
    "SIMPLE authentication is not enabled": f"HADOOP_CONF_DIR must ask for Kerberos. {_TICKET}",
    "libgssapi": "Install MIT Kerberos on every executor: libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat).",
    "InvalidToken": f"The delegation token of the container has expired or was cancelled. {_TICKET}",
    "GSSAPIError": _TICKET,
    "SaslException": _TICKET,
    "SASL": _TICKET,
    "AccessControlException": "Give the HDFS user that is used here (HADOOP_USER_NAME, or the principal of the "
    "Kerberos ticket) the right to read and write this folder.",
    "SafeModeException": "Wait until the name node leaves safe mode, or look at `hdfs dfsadmin -safemode get`.",
    "StandbyException": f"Name the service (hdfs://nameservice/path), not one of its name nodes. {_CONF_DIR}",
    "QuotaExceededException": "The quota of the folder is used up: raise it, or keep fewer versions.",
    "could only be written to 0 of the": "No data node took the block: look at their space, and whether this machine "
    "reaches them (`hdfs dfsadmin -report`).",
    "ParentNotDirectoryException": "A file is in the way: choose another folder.",
    "erasure": "Keep state in a folder without erasure coding: `hdfs ec -setPolicy -replicate -path <folder>`.",
    "encryption zone": "Name the key provider in HADOOP_CONF_DIR (hadoop.security.key.provider.path), or keep state "
    "outside encryption zones.",
    "failed to lookup address": f"Correct the host in the URI. A name service is written without a port. {_CONF_DIR}",
    "Connection refused": "Start the name node that the URI or HADOOP_CONF_DIR names, or correct the port: that of its "
    "RPC, as in fs.defaultFS, not of its web page.",
    "no answer within": _AWAY,
    "RPC listener disconnected": "Look whether the name node asks for Kerberos, and hadoop.security.authentication in "
    "HADOOP_CONF_DIR does not, and whether the port is that of its RPC.",
    "Connection reset by peer": "Look whether the data nodes ask for SASL, and dfs.data.transfer.protection in "
    "HADOOP_CONF_DIR does not.",
    "No NameNode hosts found": f"Write hdfs://host:port/path, or configure the name service. {_CONF_DIR}",
    "fs.defaultFS": f"Write hdfs://host:port/path, or configure fs.defaultFS. {_CONF_DIR}",
    "URL must contain a host": "Write hdfs://host:port/path: fs.defaultFS in HADOOP_CONF_DIR is of another scheme.",
    "viewfs": f"Configure the mount table, with a linkFallback. {_CONF_DIR}",
    "UrlParseError": "Write hdfs://host:port/path, hdfs://nameservice/path or hdfs:///path.",
}


@contextmanager
def failures(verb: str, where: str) -> Iterator[None]:
    """Raise what the client raises as StorageError: the object is as it was before."""
    try:
        yield
    except CLIENT_ERRORS as problem:
        fail(verb, where, problem)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """As ``failures``; a file that is not there is a NotFoundError."""
    try:
        yield
    except FileNotFoundError as problem:
        raise NotFoundError(f"{where} does not exist.") from problem
    except CLIENT_ERRORS as problem:
        fail("read", where, problem)


def may_pass(problem: Exception) -> bool:
    """Whether the same request may succeed later without anybody doing something."""
    answer = _ANSWER.match(str(problem))
    said = str(problem) if answer is None else f"{answer['java_class']}: {answer['text']}"
    text = _PATH.sub("", said)
    if any(sign in text for sign in _WILL_NOT_PASS):
        return False
    if isinstance(problem, OSError):
        return not isinstance(problem, FileExistsError | FileNotFoundError | PermissionError | IsADirectoryError)
    signs = _PASSING_ANSWERS if answer else _PASSING_FAILURES
    return isinstance(problem, RuntimeError) and any(sign in text for sign in signs)


def fail(verb: str, where: str, problem: Exception, outcome: Outcome = "not_applied") -> NoReturn:
    """Raise StorageError for a failure of the client."""
    if isinstance(problem, OutlastedError):
        last = problem.problem
        fail_outlasted(verb, where, problem, _reason(last), outcome, _hint(last) or _AWAY)
    raise StorageError(
        f"Could not {verb} {where}: {_reason(problem)}", outcome=outcome, hint=_hint(problem)
    ) from problem


def refuse_uri(uri: str, problem: Exception) -> NoReturn:
    """Raise InvalidInputError for a URI that the client cannot use."""
    raise InvalidInputError(f"State cannot be stored at {uri!r}: {_reason(problem)}.", hint=_hint(problem)) from problem


def is_refusal(problem: Exception) -> bool:
    """Whether the name node has answered that it did nothing; else a request may be carried out, now or later."""
    answer = _ANSWER.match(str(problem))
    has_refused = answer is not None and answer["java_class"].startswith(_REFUSALS)
    return has_refused or isinstance(problem, FileExistsError | FileNotFoundError)


def _reason(problem: Exception) -> str:
    answer = _ANSWER.match(str(problem))
    if answer is None:
        nodes = sorted({f"{found['host']}:{found['port']}" for found in _AWAY_NODES.finditer(str(problem))})
        if nodes:
            return f"a data node does not answer, and no other has the block: {', '.join(nodes)}"
        return str(problem).partition("\n")[0]
    return f"{answer['text']} ({answer['java_class'].rpartition('.')[2]})".replace('\\"', '"')


def _hint(problem: Exception) -> str | None:
    reason = _PATH.sub("", _reason(problem))
    return next((hint for sign, hint in _HINTS.items() if sign in reason), None)
