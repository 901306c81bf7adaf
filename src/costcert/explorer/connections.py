"""Who may stay connected: whoever keeps the service waiting is let go of, and never keeps others out.

A connection waits for its client until the head of a request is there (being idle is the same), until its
body is, and until the answer is fetched. Each of these has its time, however many bytes trickle in, and where
connections are too many, the one that has waited longest makes room.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from costcert.explorer.uploads import Limits

# The service itself answers a body that is late, and that answer has to get out before the line is cut.
_GRACE = 2.0


class Waiting(Enum):
    """What a connection waits for its client to do."""

    HEAD = "send a request"
    BODY = "send its body"
    FETCH = "fetch the answer"


class Member(Protocol):
    """A connection, as the table sees it."""

    address: str

    def drop(self) -> None: ...


class Table:
    """All open connections: at most `most`, and of one client half of them.

    A newcomer is never refused while somebody dawdles. Work that is under way is never given up for one; how
    much of it there is, the gates say.
    """

    def __init__(self, most: int) -> None:
        self.most, self.most_each = most, max(1, most // 2)
        self._open: set[Member] = set()
        # In the order in which they began to wait.
        self._dawdling: dict[Member, None] = {}

    def enter(self, member: Member) -> None:
        self._open.add(member)
        self.dawdle(member)
        own = {each for each in self._open if each.address == member.address}
        if len(own) > self.most_each:
            self._make_room(own)
        elif len(self._open) > self.most:
            self._make_room(self._open)

    def dawdle(self, member: Member) -> None:
        """From now on it waits for its client."""
        if member in self._open:
            self.work(member)
            self._dawdling[member] = None

    def work(self, member: Member) -> None:
        """Its client waits for us."""
        self._dawdling.pop(member, None)

    def leave(self, member: Member) -> None:
        self._open.discard(member)
        self.work(member)

    def _make_room(self, among: set[Member]) -> None:
        # The newcomer waits as well, so there is always one; where all others are at work, it goes itself.
        oldest = next(each for each in self._dawdling if each in among)
        self.leave(oldest)
        oldest.drop()


class Connection(H11Protocol):
    """Uvicorn's connection, with a deadline and a place in the table."""

    table: Table
    patience: dict[Waiting, float]
    address = ""
    _waiting: Waiting | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._look()
        self.table.enter(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel()
        self.table.leave(self)

    def drop(self) -> None:
        self.table.leave(self)
        # Closing would first send what is left of an answer, which nobody may ever fetch.
        self.transport.abort()

    def _look(self) -> None:
        """A deadline begins with what is waited for, and bytes that arrive do not move it."""
        waiting = self._waits_for()
        if waiting is self._waiting:
            return
        self._waiting = waiting
        self._cancel()
        if waiting is None:
            self.table.work(self)
        else:
            self.table.dawdle(self)
            self._deadline = self.loop.call_later(self.patience[waiting], self.drop)

    def _waits_for(self) -> Waiting | None:
        if self.transport.is_closing() or self.flow.write_paused:
            return Waiting.FETCH
        # Also of a request that was answered before its body was there.
        if self.conn.their_state is h11.SEND_BODY:
            return Waiting.BODY
        at_work = self.cycle is not None and not self.cycle.response_complete
        return None if at_work else Waiting.HEAD

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connections(limits: Limits, most: int) -> type[Connection]:
    """The class of a server's connections, which share one table."""
    later = limits.seconds + _GRACE
    shared: dict[str, Any] = {
        "table": Table(most),
        "patience": {Waiting.HEAD: limits.idle, Waiting.BODY: later, Waiting.FETCH: later},
    }
    return type("SharedConnection", (Connection,), shared)
