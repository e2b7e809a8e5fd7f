"""How to reach S3."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    is empty. ``credentials``: None means boto3's own chain.
    """

    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"
    encryption: str = "auto"
    kms_key_id: str = ""
    credentials: Credentials | None = None

    def write_arguments(self) -> dict[str, str]:
        """Return the encryption arguments of every write."""
        given = {"ServerSideEncryption": self.encryption, "SSEKMSKeyId": self.kms_key_id}
        return {key: value for key, value in given.items() if value not in {"", "auto", "none"}}
