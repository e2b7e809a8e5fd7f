"""Map the failures of the HDFS client to the error tree.

hdfs-native raises an ``OSError`` if it has no answer, or for a file that exists or is missing. If the name node
refused, it raises a ``RuntimeError``, which holds the Java class and message with a stack trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from pyspark_ckpt.state_store.blobs.base.caller import describe_caller
from pyspark_ckpt.state_store.blobs.base.retries import RetriesExhaustedError, fail_exhausted
from pyspark_ckpt.state_store.errors import InvalidInputError, NotFoundError, Outcome, StorageError

CLIENT_ERRORS = (OSError, RuntimeError, RetriesExhaustedError)
"""All that the client raises, and the error at the end of a wait for it."""


class DataNodeError(OSError):
    """The name node answers, but a data node does not."""


_ANSWER = re.compile(r'(?:Fatal)?RPCError\("(?P<java_class>[\w.$]+)", "(?P<text>.*?)(?:\\n|"\)$)', re.DOTALL)
_PATH = re.compile(r"""/[^\s"',;:()\[\]\\]*""")
"""The path of a file or folder. It is removed from a text before the search for signs, as a name may contain any."""
_PACKAGES = ("fs", "hdfs.protocol", "hdfs.server.namenode", "security")
_REFUSALS = tuple(f"org.apache.hadoop.{package}." for package in _PACKAGES)
"""The errors that a name node raises before it does anything. A router without an answer raises others."""

_PASSING_ANSWERS = (
    *("SafeModeException", "StandbyException", "RetriableException", "ObserverRetryOnActiveException"),
    *("NotReplicatedYetException", "RecoveryInProgressException", "AlreadyBeingCreatedException"),
    *("LeaseExpiredException", "NoLiveDataNode", "ServerTooBusyException", "NameNodeNotReady"),
    *("UnregisteredNodeException", "java.net.", "java.io.EOFException", "java.io.InterruptedIOException"),
    *("ConnectTimeoutException", "InterruptedException", "could only be written to 0 of the", "Zero blocklocations"),
    *("is not sufficiently replicated yet", "NameNode still not started", "not yet started", "is not ready"),
)
"""Signs of a refusal that ends by itself: the name node has just started, or waits for data nodes."""
_PASSING_FAILURES = (
    *("DataTransferError", "OperationFailed", "BlocksNotFound", "blocks not found", "InvalidRPCResponse"),
    *("All nodes failed", "RPC listener", "Failed to complete file", "Block writer closed", "Pipeline stopped"),
    *("Block writer is closed", "No new datanode", "Failed to replay"),
)
"""Signs of a data node or a connection that was lost while in use."""
_WILL_NOT_PASS = ("SASL", "GSSAPI", "libgssapi", "UrlParseError", "erasure", "encryption zone")
_DENIED = re.compile(r'Permission denied: user=(?P<user>[^,]+), access=(?P<access>\w+), inode=\\?"(?P<path>[^"\\]*)')
_AWAY_NODES = re.compile(r'ip_addr: \\?"(?P<host>[^"\\]+)\\?".*?xfer_port: (?P<port>\d+)')

_TICKET = (
    "Every executor needs a Kerberos ticket that stays valid: a ticket cache (KRB5CCNAME) that is renewed, or a keytab "
    "(KRB5_CLIENT_KTNAME). Check it with klist."
)
_CONF_DIR = "Set HADOOP_CONF_DIR, for the driver and every executor, to the folder of core-site.xml and hdfs-site.xml."
_AWAY = (
    "Check that the name node and the data nodes run and that this host can reach them. The option placeTimeout "
    "sets how long to wait for them."
)
_HINTS: Mapping[str, str] = {
    # The first sign that a failure contains counts.
    "a data node": "Start the data nodes, or let this host reach them: `hdfs dfsadmin -report` lists their addresses.",
    "SIMPLE authentication is not enabled": f"The files in HADOOP_CONF_DIR must enable Kerberos. {_TICKET}",
    "libgssapi": "Install MIT Kerberos on every executor: libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat).",
    "InvalidToken": f"The delegation token of the container has expired or was cancelled. {_TICKET}",
    "GSSAPIError": _TICKET,
    "SaslException": _TICKET,
    "SASL": _TICKET,
    "AccessControlException": "Give the HDFS user of this process (HADOOP_USER_NAME, else SPARK_USER, or the "
    "principal of the Kerberos ticket) the right to read and write this folder.",
    "SafeModeException": "Wait until the name node leaves safe mode. `hdfs dfsadmin -safemode get` shows its mode.",
    "StandbyException": f"Name the service (hdfs://nameservice/path), not one of its name nodes. {_CONF_DIR}",
    "QuotaExceededException": "The quota of the folder is used up. Raise it, or keep fewer versions.",
    "could only be written to 0 of the": "No data node accepted the block. Check their free space, and that this host "
    "can reach them (`hdfs dfsadmin -report`).",
    "ParentNotDirectoryException": "A file is in the way. Choose another folder.",
    "erasure": "Keep state in a folder without erasure coding: `hdfs ec -setPolicy -replicate -path <folder>`.",
    "encryption zone": "Name the key provider in HADOOP_CONF_DIR (hadoop.security.key.provider.path), or keep state "
    "outside encryption zones.",
    "failed to lookup address": f"Correct the host in the URI. A name service is written without a port. {_CONF_DIR}",
    "Connection refused": "Start the name node that the URI or HADOOP_CONF_DIR names, or correct the port. It must be "
    "the RPC port, as in fs.defaultFS, not that of the web page.",
    "no answer within": _AWAY,
    "RPC listener disconnected": "If the name node requires Kerberos, set hadoop.security.authentication to it "
    "in HADOOP_CONF_DIR. Check that the port is the RPC port of the name node.",
    "Connection reset by peer": "If the data nodes require SASL, set dfs.data.transfer.protection in "
    "HADOOP_CONF_DIR to their value.",
    "No NameNode hosts found": f"Write hdfs://host:port/path, or configure the name service. {_CONF_DIR}",
    "fs.defaultFS": f"Write hdfs://host:port/path, or configure fs.defaultFS. {_CONF_DIR}",
    "URL must contain a host": "Write hdfs://host:port/path. fs.defaultFS in HADOOP_CONF_DIR has another scheme.",
    "viewfs": f"Configure the mount table, with a linkFallback. {_CONF_DIR}",
    "UrlParseError": "Write hdfs://host:port/path, hdfs://nameservice/path or hdfs:///path.",
}


@contextmanager
def failures(verb: str, where: str) -> Iterator[None]:
    """Turn errors of the client into StorageError. The object is unchanged."""
    try:
        yield
    except CLIENT_ERRORS as problem:
        fail(verb, where, problem)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Do as ``failures``, but turn a missing file into NotFoundError."""
    try:
        yield
    except FileNotFoundError as problem:
        raise NotFoundError(f"{where} does not exist.") from problem
    except CLIENT_ERRORS as problem:
        fail("read", where, problem)


def may_pass(problem: Exception) -> bool:
    """Return whether the same request may succeed later without intervention."""
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
    if isinstance(problem, RetriesExhaustedError):
        last = problem.problem
        fail_exhausted(verb, where, problem, _reason(last), outcome, _hint(last) or _AWAY)
    denied = _DENIED.search(str(problem))
    raise StorageError(
        f"Could not {verb} {where}: {_reason(problem)}",
        outcome=outcome,
        hint=_hint(problem) if denied is None else _explain_denial(denied),
        is_denied=denied is not None,
    ) from problem


def _explain_denial(denied: re.Match[str]) -> str:
    """Return who needs which permission on what, according to the name node."""
    return (
        f"Give {denied['access']} permission on {denied['path']} to the HDFS user {denied['user']}. This user is "
        "HADOOP_USER_NAME, else SPARK_USER, or the principal of the Kerberos ticket, of the process of "
        f"{describe_caller()}."
    )


def refuse_uri(uri: str, problem: Exception) -> NoReturn:
    """Raise InvalidInputError for a URI that the client cannot use."""
    raise InvalidInputError(f"State cannot be stored at {uri!r}: {_reason(problem)}.", hint=_hint(problem)) from problem


def is_refusal(problem: Exception) -> bool:
    """Return whether the name node answered that it did nothing. Otherwise the request may take effect, even later."""
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
