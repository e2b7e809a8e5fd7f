"""The failures of S3: which may pass, and the remedies for those that do not."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from socket import gethostname
from typing import Any, NoReturn

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from pyspark_ckpt.state_store.blobs.base.caller import describe_caller
from pyspark_ckpt.state_store.blobs.base.retries import RetriesExhaustedError, fail_exhausted
from pyspark_ckpt.state_store.errors import NotFoundError, Outcome, StorageError


class CutAnswerError(Exception):
    """An answer lacks a part that every whole answer has, because its end was lost in transit."""


def read_status(answer: Mapping[str, Any]) -> int:
    """Return the status of an answer."""
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def require_etag(answer: Mapping[str, Any]) -> str:
    """Return the tag of an object. Raises CutAnswerError (there is none, so the service did not answer itself)."""
    if not answer.get("ETag"):
        raise CutAnswerError(f"the answer (status {read_status(answer)}) has no ETag, which every answer of S3 has")
    return str(answer["ETag"])


def require_all(answer: Mapping[str, Any], wanted: str | None, size_bytes: int) -> None:
    """Raise CutAnswerError unless an answer of ``size_bytes`` is all of the range ``wanted`` (None: the object)."""
    if wanted is None:
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        if "content-length" not in headers and "transfer-encoding" not in headers:
            raise CutAnswerError(f"the answer does not say whether its {size_bytes} bytes are the whole object")
        return
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    found = _CONTENT_RANGE.fullmatch(str(answer.get("ContentRange", "")))
    if found is not None and found[1] == first:
        end = int(found[3]) - 1
        if int(found[2]) == (min(int(last), end) if last else end) and size_bytes == int(found[2]) - int(first) + 1:
            return
    raise CutAnswerError(f"{wanted} was requested, but {size_bytes} bytes of {answer.get('ContentRange')} came")


CLIENT_ERRORS = (
    ClientError,
    BotoCoreError,
    ResponseParserError,
    HTTPError,
    CutAnswerError,
    RetriesExhaustedError,
    OSError,
)
"""All that a request may raise."""

FORBIDDEN = 403
MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
EXISTS = frozenset({"PreconditionFailed", "412"})

_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")
_RACING = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_BUSY = frozenset(
    {
        *("SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "ThrottledException"),
        *("RequestThrottled", "RequestThrottledException", "TooManyRequests", "TooManyRequestsException"),
        *("RequestLimitExceeded", "BandwidthLimitExceeded", "ServerBusy", "Busy", "429"),
        *("InternalError", "InternalFailure", "ServiceUnavailable", "ServiceUnavailableException"),
        *("RequestTimeout", "RequestTimeoutException", "408", "IncompleteBody", "KMS.ThrottlingException"),
        "BadDigest",  # the body was damaged on its way
        *("XMinioServerNotInitialized", "XMinioReadQuorum", "XMinioWriteQuorum"),
    }
)
"""Codes of a service that is only temporarily unable to answer."""
_PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524})
_SPEAKING_STATUSES = frozenset({301, 307, 401, 403})
"""The meaning of these is known, whoever answered: another region, or no rights."""
_WILL_NOT_PASS = frozenset({"NotImplemented", "XMinioStorageFull", "InsufficientStorage", "QuotaExceeded"})
_BAD_TLS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "NO_PROTOCOLS_AVAILABLE")

_WHERE = (
    "by boto3's own chain or, for a place of s3a:, in fs.s3a.access.key and fs.s3a.secret.key. Of the classes in "
    "fs.s3a.aws.credentials.provider, only those that use these keys count here."
)
_RENEW = f"Renew the credentials that are found {_WHERE}"
_CORRECT = f"Correct the credentials that are found {_WHERE}"
_GIVE = f"Give this process, on {gethostname()}, credentials that are found {_WHERE}"
_REGION = (
    "Set the region and the endpoint of the bucket in the options s3Region and s3Endpoint or, for a place of s3a:, in "
    "fs.s3a.endpoint.region and fs.s3a.endpoint."
)
_KMS = (
    "Check the key in the options s3Encryption and s3KmsKeyId or, for a place of s3a:, in fs.s3a.encryption.key. It "
    "must be enabled, in the region of the bucket. The credentials used here need kms:GenerateDataKey and kms:Decrypt "
    "for it."
)
_CHECKSUMS = "The bucket has Object Lock, and demands a checksum with each write: set the option s3Checksums to md5."
_ALL_ACTIONS = (
    "s3:GetObject, PutObject, DeleteObject, ListBucket, AbortMultipartUpload, ListBucketMultipartUploads and "
    "ListMultipartUploadParts"
)
_RIGHTS = f"Give the credentials used here {_ALL_ACTIONS} for this prefix."
_ACTIONS: Mapping[str, str] = {
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "CopyObject": "s3:PutObject, and s3:GetObject for the source,",
    "GetObject": "s3:GetObject, and s3:ListBucket for the bucket,",
    "ListObjectsV2": "s3:ListBucket",
    "DeleteObject": "s3:DeleteObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListParts": "s3:ListMultipartUploadParts",
}
"""The rights that a request needs, by its name. Without s3:ListBucket, S3 does not say that an object is missing."""
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled"})
"""Codes of a missing permission. A 403 without a code may also mean that a token has expired."""
_FULL = "The storage of the service is full, or a quota is used up. Add storage, or keep fewer versions."
_HINTS: Mapping[str, str] = {
    "NoSuchBucket": "Create the bucket, or correct its name. The state store never creates buckets.",
    "InvalidBucketName": "Correct the name of the bucket.",
    "AccessDenied": _RIGHTS,
    "AllAccessDisabled": _RIGHTS,
    "403": f"{_RIGHTS} If they have these rights, {_CORRECT[0].lower()}{_CORRECT[1:]}",
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"), _RENEW),
    **dict.fromkeys(
        (
            *("InvalidAccessKeyId", "InvalidAccessKey", "InvalidAccessKeyID", "InvalidClientTokenId", "InvalidToken"),
            *("SignatureDoesNotMatch", "InvalidSecurity", "AuthFailure", "UnrecognizedClientException"),
            *("NotSignedUp", "AccountProblem", "InvalidSecurityToken", "NoSuchAccessKey", "401", "XAdminUserNotFound"),
        ),
        _CORRECT,
    ),
    **{each.__name__: _GIVE for each in (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)},
    "RequestTimeTooSkewed": "Set the clock of this host (timedatectl; chronyc tracking): it differs from that of the "
    "service by more than the 15 minutes that S3 allows.",
    **dict.fromkeys(
        (
            *("PermanentRedirect", "TemporaryRedirect", "301", "307", "AuthorizationHeaderMalformed"),
            *("IllegalLocationConstraintException", "InvalidRegion", "NoRegionError"),
        ),
        _REGION,
    ),
    "NotImplemented": "The service must support conditional writes (If-None-Match: *). If it refuses "
    "Content-MD5, set the option s3Checksums to none.",
    "InvalidDigest": "The service refuses Content-MD5. Set the option s3Checksums to none.",
    **dict.fromkeys(("XMinioStorageFull", "InsufficientStorage", "QuotaExceeded"), _FULL),
    "SSLError": "Let this host trust the certificate of the service (AWS_CA_BUNDLE), or correct the endpoint. An "
    "endpoint without TLS begins with http:.",
    "ServerSideEncryptionConfigurationNotFoundError": _KMS,
}

_AWAY = (
    "Check that the service runs and that this host can reach it. The option placeTimeout sets how long to wait for it."
)


def may_pass(problem: Exception, *, has_answered: bool = False) -> bool:
    """Return whether the same request may succeed later without intervention.

    ``has_answered``: the service has answered before. A failure of TLS or of its certificate then comes from something
    in its place, such as a load balancer that has just started, rather than from wrong settings.
    """
    if isinstance(problem, ClientError):
        code = find_code(problem)
        if code in _WILL_NOT_PASS:
            return False
        status = read_status(problem.response)
        return code in _BUSY or code in _RACING or status in _PASSING_STATUSES or _is_strangers(problem, code, status)
    if isinstance(problem, SSLError):
        return has_answered or not any(sign in str(problem) for sign in _BAD_TLS)
    if isinstance(problem, HTTPClientError):  # botocore wraps errors that it does not know in this
        wrapped = problem.kwargs.get("error")
        return not isinstance(wrapped, Exception) or isinstance(
            wrapped, OSError | HTTPError | http.client.HTTPException
        )
    return isinstance(
        problem,
        NoConnectionError
        | IncompleteReadError
        | CredentialRetrievalError
        | MetadataRetrievalError
        | ResponseParserError
        | HTTPError
        | CutAnswerError
        | ConnectionError
        | TimeoutError,
    )


def is_refused(problem: Exception) -> bool:
    """Return whether other credentials may be accepted: these are wrong, have expired, lack a right, or are missing."""
    is_forbidden = isinstance(problem, ClientError) and read_status(problem.response) == FORBIDDEN
    return is_forbidden or find_hint(problem) in {_CORRECT, _RENEW, _GIVE}


def _is_strangers(problem: ClientError, code: str, status: int) -> bool:
    """Return whether something in front of the service has answered. S3 itself names the error in the body.

    Such an answer says nothing about an object, and may pass. An answer to HEAD never has a body.
    """
    return code in ("", str(status)) and status not in _SPEAKING_STATUSES and problem.operation_name != "HeadObject"


def fail(verb: str, where: str, problem: Exception, outcome: Outcome) -> NoReturn:
    """Raise the failure of a request as an error of the tree."""
    if isinstance(problem, RetriesExhaustedError):
        last = problem.problem
        fail_exhausted(verb, where, problem, str(last), outcome, find_hint(last) or _AWAY)
    if find_code(problem) in MISSING:
        raise NotFoundError(f"{where} does not exist.") from problem
    is_denied = find_code(problem) in _DENIED
    hint = _explain_denial(problem, where) if is_denied else find_hint(problem)
    what = f"Could not {verb} {where}: {problem}"
    raise StorageError(what, outcome=outcome, hint=hint, is_denied=is_denied) from problem


def _explain_denial(problem: Exception, where: str) -> str:
    """Return who needs which permission for what, after the service has denied a request."""
    hint = find_hint(problem)
    if hint == _KMS or not isinstance(problem, ClientError):
        return str(hint)
    action = _ACTIONS.get(problem.operation_name, f"the right to {problem.operation_name}")
    return (
        f"Give {action} on {where} to the credentials of {describe_caller()}, which are found {_WHERE} In all, the "
        f"state store needs {_ALL_ACTIONS} for its prefix."
    )


def find_hint(problem: Exception) -> str | None:
    """Return what to do about a failure, if that is known."""
    code = find_code(problem)
    if code.startswith("KMS.") or (code == "AccessDenied" and "kms:" in str(problem)):
        return _KMS
    if code == "InvalidRequest" and "Content-MD5" in str(problem):
        return _CHECKSUMS
    by_status = _HINTS.get(str(read_status(problem.response))) if isinstance(problem, ClientError) else None
    return _HINTS.get(code, by_status)


def find_code(problem: Exception) -> str:
    """Return the code of the service, else the class name of the client's error."""
    if isinstance(problem, ClientError):
        return str(problem.response.get("Error", {}).get("Code", ""))
    return type(problem).__name__
