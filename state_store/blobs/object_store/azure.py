"""A container of Azure Blob Storage, or a file system of Azure Data Lake Storage Gen2, by the requests of blobs.

A small object is one request. A larger one is sent in blocks, which a last request joins. Both requests carry the
condition that no blob exists. A storage account with a hierarchical namespace has folders: they are listed as blobs
with a mark, and stay when they are empty.

Facts of the service: https://learn.microsoft.com/rest/api/storageservices/put-block-list
https://learn.microsoft.com/azure/storage/blobs/data-lake-storage-multi-protocol-access
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.storage.blob import BlobBlock, BlobProperties, ContainerClient
from requests import RequestException, Response, Session

from pyspark_ckpt.state_store.blobs.base.retries import get_left_of_try_s
from pyspark_ckpt.state_store.blobs.object_store.azure_secrets import OwnChain, SasToken
from pyspark_ckpt.state_store.blobs.object_store.azure_settings import AzureSettings
from pyspark_ckpt.state_store.blobs.object_store.azure_transports import TokenTransport, Transport
from pyspark_ckpt.state_store.blobs.object_store.service import (
    WAIT_S,
    Ask,
    Entry,
    ExistsError,
    LostUploadError,
    MissingError,
    ObjectService,
    Page,
    PastEndError,
    Range,
    RequestError,
)
from pyspark_ckpt.state_store.blobs.object_store.sessions import (
    BAD_TLS,
    MISUNDERSTOOD,
    PASSING,
    Answers,
    equip,
    explain_misunderstood,
    first_line,
    is_bad_tls,
    timeouts,
)
from pyspark_ckpt.state_store.errors import InvalidInputError

WRITER = "ckpt_writer"
"""The metadata key that names the write. The service allows no hyphens there."""
FOLDER = "hdi_isfolder"
"""The metadata key of a folder."""
API = "2021-12-02"
"""The version of the requests, so that another release of the client means the same by them."""
LISTED = 5000
POLL_S = 0.2
MAX_NAMED = 4
WHOLE_BYTES = 256 << 20
"""The largest object that is put in one request. Larger ones are sent in blocks."""

_PASSING_CODES = frozenset(
    {"ContainerBeingDeleted", "OperationTimedOut", "ServerBusy", "InternalError", "PendingCopyOperation"}
)
_EXISTS = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet", "PathAlreadyExists"})
_LOST = frozenset({"InvalidBlockList", "InvalidBlobOrBlock"})
_WHERE = (
    "Credentials are found in AZURE_STORAGE_CONNECTION_STRING, if it is for the account, else by Azure's own chain "
    "(AZURE_CLIENT_ID and its like, a managed identity, az login) or, in a query, in the settings of Hadoop's "
    "connector (fs.azure.account.*): see docs/storage.md."
)
_RIGHTS = f"Give the identity that is used here the role Storage Blob Data Contributor on the container. {_WHERE}"
_CORRECT = f"Correct the credentials. {_WHERE}"
_HINTS: Mapping[str, str] = {
    "ContainerNotFound": "Create the container, or correct its name. The state store never creates containers.",
    "AuthenticationFailed": f"{_CORRECT} If they are right, set the clock of this host: keys work for 15 minutes.",
    "AuthorizationPermissionMismatch": _RIGHTS,
    "AuthorizationFailure": f"{_CORRECT} If they are right, let the network rules of the account admit this host.",
    "PublicAccessNotPermitted": _CORRECT,
    "NoAuthenticationInformation": _CORRECT,
    "KeyBasedAuthenticationNotPermitted": f"The account admits no keys: use an identity of Entra ID. {_WHERE}",
    "InvalidAuthenticationInfo": _CORRECT,
    "InvalidResourceName": "Correct the name of the container.",
    "ResourceTypeMismatch": "A folder has the name of this object. Choose another folder for state.",
    "PathConflict": "A file is in the way. Choose another folder for state.",
    "InvalidBlobType": "A blob of another type has this name. Choose another folder for state.",
}


class AzureContainer:
    """One container. Safe to use from many threads."""

    parts_at_once = 3

    def __init__(self, settings: AzureSettings) -> None:
        """Make a client. Makes no request. Raises RequestError (the credentials are damaged or incomplete)."""
        self.settings = settings
        self._answers = Answers(_is_services)
        self._session = equip(Session(), self._answers)
        self._tokens = TokenTransport(tries_many=settings.secret is None)
        try:
            credential = (settings.secret or OwnChain()).make_credential(self._tokens)
        except ValueError as problem:
            raise RequestError(f"the credentials cannot be used ({first_line(problem)})", hint=_WHERE) from problem
        self.client = ContainerClient(
            settings.endpoint,
            settings.container,
            credential=credential,
            transport=Transport(self._session),
            api_version=API,
            retry_total=0,  # the retry policy of the place repeats
            max_single_put_size=WHOLE_BYTES,
            enable_http_logger=False,
        )

    @property
    def url(self) -> str:
        """The URL of the container."""
        return self.settings.url

    @property
    def options(self) -> Mapping[str, str]:
        """No options: the way to the container is in the environment or in Hadoop's configuration."""
        return {}

    def check_key(self, key: str) -> None:
        """Refuse a key that the service would store under another name; see the protocol."""
        if "\\" in key or any(part.endswith(".") for part in key.split("/")):
            raise InvalidInputError(
                f"{key!r} cannot be the name of an object in Azure: no name there has a backslash or a part that ends "
                "with a dot."
            )

    def put(self, key: str, data: bytes, writer: str = "") -> None:
        """Write an object; see the protocol."""
        metadata = {WRITER: writer} if writer else None
        with self.failures("write"):
            answer = self.client.get_blob_client(key).upload_blob(
                data, length=len(data), overwrite=not writer, metadata=metadata, **_timeouts()
            )
            _require_etag(answer)

    def begin(self, key: str, writer: str) -> AzureParts:
        """Begin blocks. Makes no request; see the protocol."""
        return AzureParts(self, key, writer)

    def read_writer(self, key: str) -> str | None:
        """Return which write made an object; see the protocol."""
        try:
            with self.failures("read"):
                found = self.client.get_blob_client(key).get_blob_properties(**_timeouts())
                _require_etag(found)
        except MissingError:
            return None
        return str((found.metadata or {}).get(WRITER, ""))

    def read(self, key: str, start: int, end: int, tag: str = "") -> Range:
        """Return a range; see the protocol. A tag is an ETag."""
        condition: dict[str, Any] = {"etag": tag, "match_condition": MatchConditions.IfNotModified} if tag else {}
        with self.failures("read"):
            found = self.client.get_blob_client(key).download_blob(
                offset=start, length=end - start, max_concurrency=1, **condition, **_timeouts()
            )
            data: bytes = found.readall()
        properties = found.properties
        _require_etag(properties)
        size = self._answers.read_size(start, end, len(data)) if data else int(properties.size)
        return Range(data, size, str(properties.etag))

    def read_page(self, prefix: str, start: str, more: str, *, is_deep: bool) -> Page:
        """Return one page of a listing; see the protocol. The service lists from the beginning, whatever ``start``."""
        found, token = self._list(prefix, more, is_deep=is_deep)
        entries = [
            Entry(blob.name, int(blob.size), blob.last_modified.timestamp()) for blob in found if not _is_folder(blob)
        ]
        return Page([entry for entry in entries if entry.key >= start], token)

    def _list(self, prefix: str, more: str, *, is_deep: bool) -> tuple[list[BlobProperties], str]:
        where: dict[str, Any] = {
            "name_starts_with": prefix or None,
            "include": ["metadata"],
            "results_per_page": LISTED,
            **_timeouts(),
        }
        with self.failures("list"):
            listed = self.client.list_blobs(**where) if is_deep else self.client.walk_blobs(delimiter="/", **where)
            pages: Any = listed.by_page(more or None)
            found = [blob for blob in next(pages, ()) if isinstance(blob, BlobProperties)]
        return found, str(pages.continuation_token or "")

    def delete(self, key: str) -> None:
        """Delete an object; see the protocol."""
        with self.failures("delete"):
            self.client.get_blob_client(key).delete_blob(**_timeouts())

    def copies_from(self, source: ObjectService) -> bool:
        """Return whether ``source`` is in the same account, reached in the same way."""
        return isinstance(source, AzureContainer) and source.settings.is_same_account(self.settings)

    def copy(self, source: ObjectService, source_key: str, key: str) -> None:
        """Have the service copy an object; see the protocol. Within an account that usually happens at once."""
        if not isinstance(source, AzureContainer):
            raise TypeError(type(source).__name__)
        origin, target = source.client.get_blob_client(source_key), self.client.get_blob_client(key)
        with self.failures("copy"):
            status: Any = target.start_copy_from_url(source.sign(origin.url), **_timeouts())["copy_status"]
            while status == "pending":
                if get_left_of_try_s(WAIT_S) <= POLL_S:
                    raise RequestError("the copy is still pending", may_pass=True)
                time.sleep(POLL_S)
                status = target.get_blob_properties(**_timeouts()).copy.status
        if status != "success":
            raise RequestError(f"the copy has ended as {status!r}", may_pass=True)

    def sign(self, url: str) -> str:
        """Return the URL of an object, signed for a copy from it unless a key or an identity is used."""
        secret = self.settings.secret
        return f"{url}?{secret.token.removeprefix('?')}" if isinstance(secret, SasToken) else url

    def remove_empty_folders(self, prefix: str, ask: Ask) -> None:
        """Remove empty folders, the deepest first; see the protocol."""
        folders, parents, more = list[str](), set[str](), ""
        while True:
            found, more = ask(partial(self._list, prefix, more, is_deep=True))
            for blob in found:
                name = blob.name.rstrip("/")
                if _is_folder(blob):
                    folders.append(name)
                else:
                    parents.update(_above(name))
            if not more:
                break
        for folder in sorted(set(folders) - parents, key=lambda name: -name.count("/")):
            if any(part.startswith(".") for part in folder[len(prefix) :].split("/")):
                parents.update(_above(folder))
            elif folder not in parents:
                ask(partial(self._remove_folder, folder))

    def _remove_folder(self, folder: str) -> None:
        try:
            self.delete(folder)
        except MissingError:
            return
        except RequestError as problem:
            if problem.code not in {"DirectoryIsNotEmpty", "DirectoryNotEmpty"}:  # somebody is just writing there
                raise

    def now_s(self) -> float:
        """Return the time of the service; see the protocol."""
        with self.failures("list"):
            next(self.client.list_blobs(results_per_page=1, **_timeouts()).by_page(), None)
        return self._answers.read_time()

    @contextmanager
    def failures(self, verb: str) -> Iterator[None]:
        """Turn errors of the client into RequestError. The source of tokens may be away for a while."""
        try:
            with _translate_errors(verb):
                yield
        except RequestError as problem:
            cause = problem.__cause__
            if isinstance(cause, ClientAuthenticationError) and not cause.status_code:
                problem.may_pass = self._tokens.may_pass
            if self.settings.unread and _WHERE in problem.hint:
                problem.hint += f" Not read: {', '.join(self.settings.unread[:MAX_NAMED])}."
            raise


class AzureParts:
    """The blocks of a blob. Their names are of this upload: others may send blocks of the same blob."""

    def __init__(self, container: AzureContainer, key: str, writer: str) -> None:
        self._container, self._key, self._writer = container, key, writer
        self._staged = -1

    def send(self, number: int, start: int, data: bytes) -> None:
        """Send a block; see the protocol."""
        del start
        container = self._container
        with container.failures("write"):
            container.client.get_blob_client(self._key).stage_block(
                self._id(number), data, length=len(data), **_timeouts()
            )
        self._staged = max(number, self._staged)

    def finish(self, number: int, start: int, data: bytes) -> None:
        """Send the last block, and join all; see the protocol."""
        if self._staged < number:  # if a later step fails, it is not sent again
            self.send(number, start, data)
        container = self._container
        with container.failures("write"):
            answer = container.client.get_blob_client(self._key).commit_block_list(
                [BlobBlock(self._id(each)) for each in range(number + 1)],
                metadata={WRITER: self._writer},
                match_condition=MatchConditions.IfMissing,
                **_timeouts(),
            )
            _require_etag(answer)

    def use(self, service: ObjectService) -> None:
        """Send through ``service``; see the protocol. Blocks already sent stay."""
        if isinstance(service, AzureContainer):
            self._container = service

    def abort(self) -> None:
        """Do nothing: blocks cannot be deleted. The service discards them after seven days."""

    def _id(self, number: int) -> str:
        """Return the name of a block. All names for one blob have the same length."""
        return base64.b64encode(f"{self._writer}-{number:06d}".encode()).decode()


def _timeouts() -> dict[str, Any]:
    connect_s, read_s = timeouts()
    return {"connection_timeout": connect_s, "read_timeout": read_s}


def _is_services(answer: Response) -> bool:
    return "x-ms-request-id" in answer.headers or "x-ms-version" in answer.headers


def _is_folder(blob: BlobProperties) -> bool:
    metadata = {name.lower(): value for name, value in (blob.metadata or {}).items()}
    return metadata.get(FOLDER) == "true"


def _above(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _require_etag(answer: Any) -> None:  # noqa: ANN401 - a dict or properties
    if not answer["etag"]:
        raise RequestError("the answer has no ETag, which every answer of the service has", may_pass=True)


@contextmanager
def _translate_errors(verb: str) -> Iterator[None]:
    """Turn errors of the client into RequestError."""
    try:
        yield
    except RequestError:
        raise
    except ClientAuthenticationError as problem:
        if problem.status_code:
            raise _explain_answer(problem, verb) from problem
        text = f"no credentials are found, or they get no token ({first_line(problem)})"
        found = RequestError(text, hint=_WHERE)
        found.is_refused = True
        raise found from problem
    except HttpResponseError as problem:
        raise _explain_answer(problem, verb) from problem
    except (ServiceRequestError, ServiceResponseError, RequestException, OSError) as problem:
        is_wrong = is_bad_tls(problem)
        raise RequestError(first_line(problem), hint=BAD_TLS if is_wrong else "", may_pass=not is_wrong) from problem
    except AzureError as problem:
        raise RequestError(first_line(problem), may_pass=True) from problem
    except MISUNDERSTOOD as problem:
        raise explain_misunderstood(problem) from problem


def _explain_answer(problem: HttpResponseError, verb: str) -> RequestError:
    """Return the error of an answer."""
    status, code = int(problem.status_code or 0), getattr(problem, "error_code", None) or ""
    code = str(getattr(code, "value", code))
    said = f"{code or first_line(problem)} (status {status})"
    kind = _find_kind(status, code, verb)
    if kind is not None:
        return kind(said, status, code)
    passes = status in PASSING or code in _PASSING_CODES or status in {0, 200, 201, 202, 206}
    hint = _HINTS.get(code, {401: _CORRECT, 403: _RIGHTS}.get(status, ""))
    found = RequestError(said, status, code, hint, may_pass=passes)
    found.is_denied = code == "AuthorizationPermissionMismatch"
    found.is_refused = status in {401, 403}
    return found


def _find_kind(status: int, code: str, verb: str) -> type[RequestError] | None:
    """Return the class of a failure that callers handle."""
    if verb == "write" and (code in _EXISTS or status == 412):  # noqa: PLR2004
        return ExistsError
    if code in _LOST:
        return LostUploadError
    if status == 404 and code != "ContainerNotFound" and verb not in {"write", "list"}:  # noqa: PLR2004
        return MissingError
    return PastEndError if status == 416 else None  # noqa: PLR2004
