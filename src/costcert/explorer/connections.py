"""Connections: slow clients are disconnected, and never keep others out.

A connection waits for its client until the head of a request is complete (an idle connection does the same),
until its body is, and until the answer is fetched. Each step has a deadline, which bytes that trickle in do
not move; where connections are too many, the one that has waited longest is closed.

Uvicorn's own options do not suffice: `timeout_keep_alive` covers only the time between two requests, and
`limit_concurrency` refuses the newcomer instead of closing the slow connection.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from costcert.explorer.limits import Limits

# The service itself answers a late body, and that answer must be sent before the connection is closed.
_GRACE = 2.0
# Bodies that are refused are read to their end, up to this many times the longest that is taken: a connection
# that is closed while its client sends is reset, and the answer lost.
_DISCARDED = 4


class ClientStep(Enum):
    """What a connection waits for its client to do."""

    HEAD = "send a request"
    BODY = "send its body"
    FETCH = "fetch the answer"


class TableEntry(Protocol):
    """What the table needs of a connection."""

    address: str

    def drop(self) -> None: ...


class ConnectionTable:
    """All open connections: at most `limit`, and at most half of that per client.

    A new connection replaces the one that has waited longest for its client. A connection whose request is
    being answered is never closed for a new one; the work queues limit how many of these there are.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.client_limit = limit, max(1, limit // 2)
        self._open: set[TableEntry] = set()
        # In the order in which they began to wait.
        self._waiting: dict[TableEntry, None] = {}

    def add(self, entry: TableEntry) -> None:
        self._open.add(entry)
        self.mark_waiting(entry)
        same_client = {each for each in self._open if each.address == entry.address}
        if len(same_client) > self.client_limit:
            self._drop_oldest(same_client)
        elif len(self._open) > self.limit:
            self._drop_oldest(self._open)

    def mark_waiting(self, entry: TableEntry) -> None:
        """It waits for its client from now on."""
        if entry in self._open:
            self.mark_busy(entry)
            self._waiting[entry] = None

    def mark_busy(self, entry: TableEntry) -> None:
        """Its request is being answered."""
        self._waiting.pop(entry, None)

    def remove(self, entry: TableEntry) -> None:
        self._open.discard(entry)
        self.mark_busy(entry)

    def _drop_oldest(self, entries: set[TableEntry]) -> None:
        # The new connection waits as well, so there is always one; where all others are busy, it is dropped.
        oldest = next(each for each in self._waiting if each in entries)
        self.remove(oldest)
        oldest.drop()


class Connection(H11Protocol):
    """Uvicorn's connection, with deadlines and an entry in the table."""

    table: ConnectionTable
    timeouts: dict[ClientStep, float]
    discard_limit: int
    address = ""
    _discarded = 0
    _awaited: ClientStep | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._update_deadline()
        self.table.add(self)

    def data_received(self, data: bytes) -> None:
        answered = self.cycle is not None and self.cycle.response_complete
        self._discarded = self._discarded + len(data) if answered and self._is_body_incomplete() else 0
        if self._discarded > self.discard_limit:
            self.drop()
            return
        super().data_received(data)
        self._update_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_deadline()
        self.table.remove(self)

    def drop(self) -> None:
        self.table.remove(self)
        # `close` would first send the rest of an answer, which the client may never fetch.
        self.transport.abort()

    def _update_deadline(self) -> None:
        """Set a deadline when the awaited step changes; bytes that arrive do not move it."""
        awaited = self._awaited_step()
        if awaited is self._awaited:
            return
        self._awaited = awaited
        self._cancel_deadline()
        if awaited is None:
            self.table.mark_busy(self)
        else:
            self.table.mark_waiting(self)
            self._deadline = self.loop.call_later(self.timeouts[awaited], self.drop)

    def _awaited_step(self) -> ClientStep | None:
        if self.transport.is_closing() or self.flow.write_paused:
            return ClientStep.FETCH
        # Also for a request that was answered before its body was complete.
        if self._is_body_incomplete():
            return ClientStep.BODY
        busy = self.cycle is not None and not self.cycle.response_complete
        return None if busy else ClientStep.HEAD

    def _is_body_incomplete(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connection_class(limits: Limits, limit: int) -> type[Connection]:
    """The class of the connections of one server, which share one table."""
    seconds = limits.seconds + _GRACE
    shared: dict[str, Any] = {
        "table": ConnectionTable(limit),
        "discard_limit": _DISCARDED * limits.bytes,
        "timeouts": {ClientStep.HEAD: limits.idle, ClientStep.BODY: seconds, ClientStep.FETCH: seconds},
    }
    return type("SharedConnection", (Connection,), shared)
