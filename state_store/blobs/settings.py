"""How to reach services that keep blobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class S3Settings:
    """How to reach the service; what is empty is left to boto3's own configuration.

    ``addressing``: ``auto``, ``path`` or ``virtual``. ``encryption``: ``none``, ``AES256`` or ``aws:kms``, the latter
    with the key ``kms_key_id``, else the bucket's own.
    """

    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"
    encryption: str = "none"
    kms_key_id: str = ""

    def write_arguments(self) -> dict[str, str]:
        """What every write says of encryption."""
        given = {"ServerSideEncryption": self.encryption, "SSEKMSKeyId": self.kms_key_id}
        return {key: value for key, value in given.items() if value not in {"", "none"}}
