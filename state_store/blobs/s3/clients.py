"""Clients of S3, one for each set of settings; see ``base/clients.py``.

Shared data of all clients, above all the description of the service, is in memory once.
"""

from __future__ import annotations

import threading
from typing import Any

import boto3
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.handlers import add_expect_header
from botocore.session import Session
from urllib3.util import Timeout

from pyspark_ckpt.state_store.blobs.base.clients import Clients
from pyspark_ckpt.state_store.blobs.base.retries import get_left_of_try_s
from pyspark_ckpt.state_store.s3_settings import S3Settings

CONNECTIONS = 32
CONNECT_S, READ_S = 10, 60
"""The longest waits for a connection and for the next bytes. The retry policy of the place may allow less."""

_loading = threading.Lock()
_loader: list[Any] = []


def new_session() -> boto3.session.Session:
    """Return a new session with its own credentials. All sessions share the loaded description of the service."""
    session = Session()
    with _loading:
        if not _loader:
            _loader.append(session.get_component("data_loader"))
    session.register_component("data_loader", _loader[0])
    return boto3.session.Session(botocore_session=session)


def _new_client(settings: S3Settings, session: boto3.session.Session | None = None) -> Any:  # noqa: ANN401 - boto3 has no types
    """Return a client for these settings. It keeps its connections. ``session``: finds its credentials."""
    config = Config(
        max_pool_connections=CONNECTIONS,
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "legacy", "total_max_attempts": 1},  # the retry policy of the place repeats
        s3={"addressing_style": settings.addressing},
        # Requests have Content-MD5, which every service knows. Older services refuse newer headers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    keys = settings.credentials
    client = (session or new_session()).client(
        "s3",
        endpoint_url=settings.endpoint or None,
        region_name=settings.region or None,
        aws_access_key_id=keys and keys.access_key,
        aws_secret_access_key=keys and keys.secret_key,
        aws_session_token=keys and keys.session_token,
        config=config,
    )
    _limit_each_try(client)
    # Waiting for the service to ask for the body would make every write two round trips.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client


def _other_client(settings: S3Settings, refused: Any, is_recent: bool) -> Any:  # noqa: ANN401, FBT001 - see Clients
    """Return a client with the credentials that boto3's chain finds now; None if those of ``refused`` are the same.

    Keys of the settings do not change.
    """
    if settings.credentials is not None:
        return None
    session = new_session()
    found, known = session.get_credentials(), refused._request_signer._credentials  # noqa: SLF001 - no public way
    if found is None or (is_recent and isinstance(found, RefreshableCredentials)):
        return None
    if known is not None and known.get_frozen_credentials() == found.get_frozen_credentials():
        return None
    return _new_client(settings, session)


CLIENTS: Clients[S3Settings, Any] = Clients(_new_client, _other_client)
"""The clients of this process."""


class _TimeoutOfTry(Timeout):
    """The timeout of one request. urllib3 asks for a clone when each request begins."""

    def clone(self) -> Timeout:
        """Return the rest of the current try."""
        return Timeout(connect=get_left_of_try_s(CONNECT_S), read=get_left_of_try_s(READ_S))


def _limit_each_try(client: Any) -> None:  # noqa: ANN401 - boto3 has no types
    """Let no request outlast its try. botocore itself has timeouts for clients, not for requests."""
    session, timeout = client._endpoint.http_session, _TimeoutOfTry(connect=CONNECT_S, read=READ_S)  # noqa: SLF001
    session._timeout = session._manager.connection_pool_kw["timeout"] = timeout  # noqa: SLF001
