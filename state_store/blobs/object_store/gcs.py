"""A bucket of Google Cloud Storage.

A small object is one request. A larger one is a resumable upload, whose parts are sent in order; the service tells how
much of it has arrived. The condition that no object exists (generation 0) is given when the upload begins, and applies
at the moment when the object appears.

Facts of the service: https://cloud.google.com/storage/docs/request-preconditions
https://cloud.google.com/storage/docs/performing-resumable-uploads
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError, TransportError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Blob, Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests import RequestException, Response, Session
from urllib3.exceptions import HTTPError

from pyspark_ckpt.state_store.blobs.object_store.gcs_credentials import WHERE, find_credentials, read_source
from pyspark_ckpt.state_store.blobs.object_store.gcs_settings import GcsSettings
from pyspark_ckpt.state_store.blobs.object_store.service import (
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

WRITER = "ckpt-writer"
"""The metadata key that names the write."""

_BYTES = "application/octet-stream"
_FIELDS = "kind,items(name,size,timeCreated),nextPageToken"
_FIND = "find the credentials"
LISTED = 1000
_UNFINISHED = 308
_NO_BUCKET = re.compile(r"bucket does not exist", re.IGNORECASE)
_RIGHTS = (
    "Give the account used here storage.objects.create, delete, get and list on the bucket (the role Storage Object "
    f"User). {WHERE}"
)
_HINTS: Mapping[int, str] = {
    401: f"Correct the credentials. {WHERE}",
    403: _RIGHTS,
    507: "A quota is used up. Raise it, or keep fewer versions.",
}


class GcsBucket:
    """One bucket. Safe to use from many threads."""

    parts_at_once = 1
    """Parts of a resumable upload are sent in order."""

    def __init__(self, name: str, settings: GcsSettings) -> None:
        """Find the credentials. Makes no request to the bucket. Raises RequestError (there are none, or not yet)."""
        self.name = name
        self.settings = settings
        self.source = read_source(settings)
        self._answers = Answers(_is_services)
        with _failures(_FIND):
            credentials = find_credentials(settings)
            make_session: Any = AuthorizedSession
            session = make_session(credentials)
            self.session = equip(session, self._answers)
            self.client = Client(  # this asks the machine, if the credentials are its own
                project="-",  # used for nothing but buckets, which are never created here
                credentials=credentials,
                _http=session,
                client_options={"api_endpoint": settings.endpoint} if settings.endpoint else None,
            )
        # Otherwise the client asks for the metadata of the bucket, in its own threads, with a right that may be
        # missing.
        self.client._bucket_metadata_cache = None  # noqa: SLF001
        self.handle = self.client.bucket(name)

    @property
    def url(self) -> str:
        """The URL of the bucket."""
        return f"gs://{self.name}"

    @property
    def options(self) -> Mapping[str, str]:
        """No options: the way to the bucket is in the environment or in Hadoop's configuration."""
        return {}

    def put(self, key: str, data: bytes, writer: str = "") -> None:
        """Write an object; see the protocol."""
        condition = {"if_generation_match": 0} if writer else {}
        with _failures("write"):
            self._blob(key, writer).upload_from_string(
                data, content_type=_BYTES, timeout=timeouts(), retry=None, **condition
            )

    def begin(self, key: str, writer: str) -> GcsParts:
        """Begin a resumable upload; see the protocol."""
        with _failures("write"):
            url = self._blob(key, writer).create_resumable_upload_session(
                content_type=_BYTES, timeout=timeouts(), retry=None, if_generation_match=0, checksum=None
            )
        return GcsParts(self.session, str(url))

    def read_writer(self, key: str) -> str | None:
        """Return which write made an object; see the protocol."""
        blob = self.handle.blob(key)
        try:
            with _failures("read"):
                blob.reload(projection="noAcl", timeout=timeouts(), retry=None)
        except MissingError:
            return None
        return str((blob.metadata or {}).get(WRITER, ""))

    def read(self, key: str, start: int, end: int, tag: str = "") -> Range:
        """Return a range; see the protocol. A tag is the number of a generation."""
        blob = self.handle.blob(key, generation=int(tag) if tag else None)
        with _failures("read one version of" if tag else "read"):
            data: bytes = blob.download_as_bytes(
                start=start, end=end - 1, raw_download=True, checksum=None, timeout=timeouts(), retry=None
            )
        size = self._answers.read_size(start, end, len(data))
        generation = self._answers.headers.get("x-goog-generation", "")
        if not generation.isdecimal():
            raise RequestError("the answer does not tell the generation of the object", may_pass=True)
        return Range(data, size, generation)

    def read_page(self, prefix: str, start: str, more: str, *, is_deep: bool) -> Page:
        """Return one page of a listing; see the protocol."""
        with _failures("list"):
            found = self.client.list_blobs(
                self.handle,
                prefix=prefix or None,
                delimiter=None if is_deep else "/",
                start_offset=start or None,
                page_token=more or None,
                page_size=LISTED,
                fields=_FIELDS if is_deep else f"{_FIELDS},prefixes",
                timeout=timeouts(),
                retry=None,
            )
            entries = [
                Entry(blob.name, int(blob.size or 0), blob.time_created.timestamp()) for blob in next(found.pages, ())
            ]
        return Page(entries, found.next_page_token or "")

    def delete(self, key: str) -> None:
        """Delete an object; see the protocol."""
        with _failures("delete"):
            self.handle.blob(key).delete(timeout=timeouts(), retry=None)

    def copies_from(self, source: ObjectService) -> bool:
        """Return whether ``source`` is also a bucket here, reached in the same way."""
        return isinstance(source, GcsBucket) and source.settings == self.settings

    def copy(self, source: ObjectService, source_key: str, key: str) -> None:
        """Have the service rewrite an object, in as many requests as it wants; see the protocol."""
        if not isinstance(source, GcsBucket):
            raise TypeError(type(source).__name__)
        origin, token = source.handle.blob(source_key), None
        while True:
            with _failures("copy"):
                token, _, _ = self.handle.blob(key).rewrite(origin, token=token, timeout=timeouts(), retry=None)
            if token is None:
                return

    def check_key(self, key: str) -> None:
        """Accept every key; see the protocol."""

    def remove_empty_folders(self, prefix: str, ask: Ask) -> None:
        """Do nothing: a bucket has no folders. Those of a bucket with a hierarchical namespace stay."""

    def now_s(self) -> float:
        """Return the time of the service; see the protocol."""
        with _failures("list"):
            next(
                self.client.list_blobs(self.handle, max_results=1, fields="kind", timeout=timeouts(), retry=None).pages
            )
        return self._answers.read_time()

    def _blob(self, key: str, writer: str) -> Blob:
        blob = self.handle.blob(key)
        if writer:
            blob.metadata = {WRITER: writer}
        return blob


class GcsParts:
    """A resumable upload. Its URL is a secret: whoever has it can write the object."""

    def __init__(self, session: Session, url: str) -> None:
        self._session, self._url = session, url
        self._tried = -1

    def send(self, number: int, start: int, data: bytes) -> None:
        """Send a part; see the protocol. If it was sent before, it begins where the service has arrived."""
        self._send(number, start, data, "*")

    def finish(self, number: int, start: int, data: bytes) -> None:
        """Send the last part; see the protocol."""
        self._send(number, start, data, str(start + len(data)))

    def use(self, service: ObjectService) -> None:
        """Send by the connections of ``service``; see the protocol."""
        if isinstance(service, GcsBucket):
            self._session = service.session

    def abort(self) -> None:
        """End the upload; see the protocol."""
        with _failures("end the upload of"):
            self._session.request("DELETE", self._url, timeout=timeouts(), allow_redirects=False)

    def _send(self, number: int, start: int, data: bytes, total: str) -> None:
        before = self._tried
        try:
            self._send_rest(number, start, data, total)
        except RequestError as problem:
            if problem.is_refused:  # nothing of it has arrived
                self._tried = before
            raise

    def _send_rest(self, number: int, start: int, data: bytes, total: str) -> None:
        end = start + len(data)
        with _failures("write"):
            arrived = start if number > self._tried else self._ask_arrived(total)
            self._tried = number
            if arrived is None or (arrived >= end and total == "*"):
                return
            if not start <= arrived <= end:
                raise LostUploadError(f"{arrived} bytes have arrived, but {start} to {end} were to be sent")
            span = f"bytes {arrived}-{end - 1}/{total}" if arrived < end else f"bytes */{total}"
            answer = self._put(span, data[arrived - start :])
            if answer.status_code == _UNFINISHED and (total != "*" or _read_arrived(answer) != end):
                raise RequestError(f"only {_read_arrived(answer)} of {end} bytes have arrived", may_pass=True)

    def _ask_arrived(self, total: str) -> int | None:
        """Return how many bytes have arrived. None if the object is finished."""
        answer = self._put(f"bytes */{total}", b"")
        return _read_arrived(answer) if answer.status_code == _UNFINISHED else None

    def _put(self, span: str, data: bytes) -> Response:
        headers = {"Content-Range": span}
        answer = self._session.request(
            "PUT", self._url, data=data, headers=headers, timeout=timeouts(), allow_redirects=False
        )
        if answer.status_code in (200, 201, _UNFINISHED):
            return answer
        if answer.status_code in (404, 410):
            raise LostUploadError(f"the upload is gone (status {answer.status_code})", answer.status_code)
        raise _explain_status(answer.status_code, answer.text[:500], "", "write")


def _read_arrived(answer: Response) -> int:
    _, _, last = answer.headers.get("range", "").rpartition("-")
    return int(last) + 1 if last.isdecimal() else 0


def _is_services(answer: Response) -> bool:
    """Return whether the service itself has answered, rather than something in front of it."""
    if "location" in answer.headers or any(name.lower().startswith("x-g") for name in answer.headers):
        return True
    if answer.status_code == 200:  # noqa: PLR2004
        return _names_kind(answer)
    return not answer.headers.get("content-type", "").startswith("text/html")


def _names_kind(answer: Response) -> bool:
    """Return whether the content is the API's. A deletion is answered by status 204, or by an emulator's null."""
    if answer.request.method == "DELETE":
        return answer.content.strip() == b"null"
    try:
        said = answer.json()
    except ValueError:
        return False
    return isinstance(said, dict) and str(said.get("kind", "")).startswith("storage#")


@contextmanager
def _failures(verb: str) -> Iterator[None]:
    """Turn errors of the client into RequestError."""
    try:
        yield
    except RequestError:
        raise
    except GoogleAPICallError as problem:
        status = int(problem.code or 0)
        code = str((problem.errors or [{}])[0].get("reason", "")) if isinstance(problem.errors, list) else ""
        raise _explain_status(status, problem.message, code, verb) from problem
    except DefaultCredentialsError as problem:
        raise _refusal(f"this process has no credentials ({first_line(problem)})", WHERE) from problem
    except (RefreshError, TransportError) as problem:
        is_away = isinstance(problem, TransportError) or isinstance(problem.__cause__, TransportError)
        passes = is_away or bool(getattr(problem, "retryable", False))
        text = f"the credentials get no token ({first_line(problem)})"
        raise _refusal(text, f"Correct the credentials. {WHERE}", may_pass=passes) from problem
    except GoogleAuthError as problem:
        raise RequestError(f"the credentials cannot be used ({first_line(problem)})", hint=WHERE) from problem
    except (RequestException, HTTPError, InvalidResponse, DataCorruption, ConnectionError, TimeoutError) as problem:
        is_wrong = is_bad_tls(problem)
        raise RequestError(first_line(problem), hint=BAD_TLS if is_wrong else "", may_pass=not is_wrong) from problem
    except MISUNDERSTOOD as problem:
        if verb == _FIND:
            text = f"the credentials cannot be used ({first_line(problem)})"
            raise RequestError(text, hint=WHERE) from problem
        raise explain_misunderstood(problem) from problem


def _refusal(text: str, hint: str, *, may_pass: bool = False) -> RequestError:
    """Return the error of a request that needed other credentials."""
    found = RequestError(text, hint=hint, may_pass=may_pass)
    found.is_refused = True
    return found


def _explain_status(status: int, text: str, code: str, verb: str) -> RequestError:
    """Return the error of an answer."""
    said = f"{first_line(text)} (status {status})"
    if status == 404:  # noqa: PLR2004
        if verb in {"write", "list"} or _NO_BUCKET.search(text):
            hint = "Create the bucket, or correct its name. The state store never creates buckets."
            return RequestError(said, status, code, hint)
        if verb == "read one version of":
            return RequestError("it was replaced or deleted while it was read", status, code)
        return MissingError(said, status, code)
    if status == 412:  # noqa: PLR2004
        return ExistsError(said, status, code)
    if status == 416:  # noqa: PLR2004
        return PastEndError(said, status, code)
    is_away = status in PASSING or status >= 500  # noqa: PLR2004
    found = RequestError(said, status, code, _HINTS.get(status, ""), may_pass=is_away and status != 507)  # noqa: PLR2004
    found.is_denied = status == 403  # noqa: PLR2004
    found.is_refused = status in {401, 403}
    return found
