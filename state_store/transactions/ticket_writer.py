"""Write the tickets of one store, with the states that a worker's program is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from pyspark_ckpt.state_store.format.keys import EMPTY
from pyspark_ckpt.state_store.format.meta import StoreMeta, is_keyed
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER, NON_RESTORED_STATE_NAME
from pyspark_ckpt.state_store.identity import Caller
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.transactions.context import StoreContext
from pyspark_ckpt.state_store.transactions.local_side import LocalSide
from pyspark_ckpt.state_store.transactions.operator_states import States
from pyspark_ckpt.state_store.transactions.ticket import Ticket, WorkerTask, read_ticket, ticket_path, write_ticket
from pyspark_ckpt.state_store.transactions.transaction import Transaction


class TicketWriter:
    """Writes the tickets of the transactions of one store."""

    def __init__(self, context: StoreContext, local: LocalSide) -> None:
        """Write tickets that lead to the copies of ``local``."""
        self._context = context
        self._local = local
        self._is_state_left: bool | None = None

    def read_states(self, caller: Caller, own: StoreMeta) -> Sequence[States]:
        """Return the states that the program of a run is checked against. A reader outside a query has no program.

        Makes all requests that ``write`` would need, which is called under the store's lock. Raises as
        ``OperatorStates.of``.
        """
        context = self._context
        states: Sequence[States] = ()
        if caller.run_id and own.marker != EMPTY:
            where = caller.run_id, context.identity, own, context.place, context.traffic
            context.operators.require_agreement(*where)
            states = context.operators.of(*where)
        self._find_whether_state_is_left([own.states, *states])
        return states

    def write(self, transaction: Transaction, worker: WorkerTask, states: Sequence[States]) -> None:
        """Write the ticket of a transaction for a worker. Raises OSError, StorageError."""
        context, copy = self._context, transaction.copy
        who = context.identity
        transaction.ticket = ticket_path(context.shared.local_dir, worker, who)
        live = self._local.is_live(transaction)
        write_ticket(
            transaction.ticket,
            Ticket(
                who.operator,
                who.partition,
                who.name,
                transaction.base.version,
                transaction.base.id,
                transaction.new_id,
                str(copy.db),
                live,
                str(transaction.staging),
                context.options.compression,
                transaction.meta,
                worker.key_schema,
                bool(self._is_state_left),
                tuple(states),
                worker.num_partitions,
                context.checkpoint.url,
                context.place_options,
                str(transaction.ticket),
            ),
        )

    def rewrite(self, transaction: Transaction, frozen: LocalCopy) -> None:
        """Let the ticket of a transaction, if it has one, lead to a frozen copy of its base.

        Raises OSError, FormatError, InvalidInputError.
        """
        if transaction.ticket is not None:
            ticket = read_ticket(transaction.ticket)
            moved = msgspec.structs.replace(ticket, db=str(frozen.db), live=False)
            write_ticket(transaction.ticket, moved)

    def _find_whether_state_is_left(self, states: Iterable[States]) -> None:
        """Find whether the restore that made the checkpoint allows state without a place. One request per store."""
        if self._is_state_left is None and any(map(is_keyed, chain.from_iterable(states))):
            found = self._context.checkpoint.list(CHECKPOINT_FOLDER, prefix=NON_RESTORED_STATE_NAME)
            self._is_state_left = bool(found)
