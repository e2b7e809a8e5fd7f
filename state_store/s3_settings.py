"""How to reach S3."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Credentials:
    """Keys of S3. They are never shown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class S3Settings:
    """How to reach the service. A value that is empty or ``auto`` is left to boto3's own configuration and the bucket.

    ``addressing``: ``auto``, ``path`` or ``virtual``. ``encryption``: ``auto``, ``none``, or S3's name for it
    (``AES256``, ``aws:kms``, ``aws:kms:dsse``). The last two use the key ``kms_key_id``, or the bucket's own key if it
    is empty. ``checksums``: ``md5`` or ``none``. ``credentials``: None means boto3's own chain.
    """

    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"
    encryption: str = "auto"
    kms_key_id: str = ""
    checksums: str = "md5"
    credentials: Credentials | None = None

    def list_options(self) -> dict[str, str]:
        """Return the equivalent options of this package. None of them holds credentials."""
        has_option = self.encryption in {"none", "AES256", "aws:kms"}
        given = {
            "s3Endpoint": _leave_out_credentials(self.endpoint),
            "s3Region": self.region,
            "s3Addressing": self.addressing,
            "s3Encryption": self.encryption if has_option else "",
            "s3KmsKeyId": self.kms_key_id if has_option else "",
            "s3Checksums": "" if self.checksums == "md5" else self.checksums,
        }
        return {key: value for key, value in given.items() if value not in {"", "auto"}}

    def write_arguments(self) -> dict[str, str]:
        """Return the encryption arguments of every write."""
        given = {"ServerSideEncryption": self.encryption, "SSEKMSKeyId": self.kms_key_id}
        return {key: value for key, value in given.items() if value not in {"", "auto", "none"}}


def _leave_out_credentials(endpoint: str) -> str:
    """Return an endpoint without a user or a password before its host. No request uses those."""
    found = urlsplit(endpoint)
    return found._replace(netloc=found.netloc.rpartition("@")[2]).geturl()
