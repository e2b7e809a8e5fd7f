"""Open a checkpoint that has lost its ``metadata``, which holds the id of the query, and find that id."""

from __future__ import annotations

from typing_extensions import override

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import (
    FolderKind,
    find_savepoint_kind,
    is_query_id,
    make_refusal,
    read_unfinished_request,
)
from pyspark_ckpt.state_store.checkpoints.query.files import LOGS
from pyspark_ckpt.state_store.display import write_command
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.remote import POINTER_NAME, Pointer, folder_of_query, query_id
from pyspark_ckpt.state_store.format.sealed_objects import read_json
from pyspark_ckpt.state_store.options import Options


class DamagedCheckpoint(Checkpoint):
    """A checkpoint in which any file may be damaged. Its ``query_id`` is empty if ``metadata`` does not have it."""

    def __init__(self, location: str, options: Options) -> None:
        """Open ``location``. Raises InvalidInputError (a savepoint, or no checkpoint at all), StorageError."""
        super().__init__(location, options)
        if find_savepoint_kind(self.place) is FolderKind.SAVEPOINT:
            raise InvalidInputError(
                f"{self.place.url} is a savepoint, and only checkpoints can be repaired.",
                hint=f"See what is wrong with it: {write_command('savepoint', 'verify', self.place.url)}.",
            )

    @override
    def _read_query_id(self) -> str:
        try:
            return query_id(self.place)
        except (NotFoundError, FormatError) as problem:
            is_other = find_savepoint_kind(self.place) or read_unfinished_request(self.place)
            if is_other or not any(self.place.list(log) for log in LOGS):
                raise make_refusal(self.place, self.workplace.place) from problem
            return ""

    def find_ids(self) -> set[str]:
        """Return the ids of the query in the pointers of its stores to their state. Raises StorageError.

        Empty if the state is in the checkpoint: then no file there has the id.
        """
        found = set()
        for blob in self.place.walk("state"):
            folder, _, name = blob.name.rpartition("/")
            if name == POINTER_NAME:
                found |= self._find_id(folder)
        return found

    def _find_id(self, folder: str) -> set[str]:
        """Return the id in the pointer of a store: its state is in ``<remote>/<id>/<folder>``."""
        try:
            pointed = read_json(self.place, f"{folder}/{POINTER_NAME}", Pointer).place
        except (NotFoundError, FormatError):
            return set()
        above = pointed.removesuffix(f"/{folder}")
        remote, _, query = above.rpartition("/")
        return {query} if above != pointed and folder_of_query(remote, query) == above and is_query_id(query) else set()
