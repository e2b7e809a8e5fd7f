"""Requests to HDFS: which client answers them, and how they are repeated."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from hdfs_native import Client

from pyspark_ckpt.state_store.blobs.base.place import check_name
from pyspark_ckpt.state_store.blobs.base.retries import RetryPolicy
from pyspark_ckpt.state_store.blobs.hdfs.errors import (
    CLIENT_ERRORS,
    DataNodeError,
    may_pass,
    refuse_uri,
)
from pyspark_ckpt.state_store.blobs.hdfs.silent_calls import within_try

if TYPE_CHECKING:
    pass

CONNECT_ATTEMPTS = 0
"""How often the client itself retries a single name node that refuses. The place's own retries do that instead."""

FAILOVERS = 3
"""How often the client moves from one name node of a service to the next within a try."""

_RETRIES = RetryPolicy()
T = TypeVar("T")

_USER_OF_SPARK = "SPARK_USER"
"""Spark sets it on clusters: drivers and executors in containers, and executors elsewhere, act as this user."""

TEMPORARY = ".tmp"
"""How names of unfinished files end."""
_ACTIVE_ANSWERS = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


class HdfsRequests:
    """Requests to one folder of HDFS. Safe to use from many threads."""

    def __init__(self, uri: str, retries: RetryPolicy = _RETRIES) -> None:
        """Use ``hdfs://host:port/path``, ``hdfs://nameservice/path``, ``hdfs:///path`` or ``viewfs://table/path``.

        All but the first form are looked up in HADOOP_CONF_DIR. Makes no request. Raises InvalidInputError.
        """
        scheme, _, rest = uri.partition(":")
        authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        self._service = f"{scheme.lower()}://{authority}"
        self._root = "".join(f"/{part}" for part in path.split("/") if part)
        self.retries = retries
        try:
            _client(self._service)
        except CLIENT_ERRORS as problem:
            refuse_uri(uri, problem)

    @property
    def client(self) -> Client:
        """The client. If it does not answer, another replaces it."""
        return _client(self._service)

    def ask(self, request: Callable[[], T]) -> T:
        """Return the answer to a request, which is repeated while its failures may pass."""
        return self.retries.repeat(self._service, request, may_pass)

    def call(self, request: Callable[[], T]) -> T:
        """Return the client's answer within the current try. Without one, the next try gets another client."""
        try:
            return within_try(request)
        except TimeoutError:
            _client.cache_clear()
            raise

    def call_data_node(self, request: Callable[[], T]) -> T:
        """Do as ``call``, for a request to data nodes. Raises DataNodeError (they fail and the name node answers)."""
        try:
            return self.call(request)
        except OSError as problem:
            if not may_pass(problem):
                raise
            client = self.client
            try:
                self.call(lambda: client.get_file_info("/"))
            except CLIENT_ERRORS:
                raise problem from None
            raise DataNodeError(f"a data node does not answer ({problem}), while {self._service} does") from problem

    @property
    def url(self) -> str:
        """URI of the folder."""
        return f"{self._service}{self._root or '/'}"

    def stamp_ms(self, folder: str) -> int:
        """Return the name node's time in milliseconds, from a temporary new file in ``folder``."""
        client, path = self.client, f"{folder}/.{uuid.uuid4().hex}{TEMPORARY}"

        def stamp() -> int:
            client.create(path).close()
            try:
                return int(client.get_file_info(path).modification_time)
            finally:
                client.delete(path)

        return self.call(stamp)

    @property
    def service(self) -> str:
        """The name node, or the name service."""
        return self._service

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    def _where(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"


@cache
def _client(service: str) -> Client:
    """Return the client of this process for a name node or service. It keeps its connections.

    Observer nodes may lag behind the writes of others, which a listing must not. Only the active name node is asked.

    The user is the one that Spark acts as: in containers, the system's user is that of YARN. The client reads
    HADOOP_USER_NAME whenever it connects.
    """
    if user := os.environ.get(_USER_OF_SPARK):
        os.environ.setdefault("HADOOP_USER_NAME", user)
    host, colon, _ = service.partition("://")[2].partition(":")
    if colon:
        return Client(f"{service}/", {"dfs.client.failover.max.attempts": str(CONNECT_ATTEMPTS)})
    settings = {
        f"dfs.client.failover.proxy.provider.{host}": _ACTIVE_ANSWERS,
        "dfs.client.failover.max.attempts": str(FAILOVERS),
    }
    return Client(f"{service}/", settings)
