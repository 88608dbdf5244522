"""Events out, over a WebSocket: who is connected says what it watches, and is told its states, each newer than before.

    -> {"action": "subscribe", "jobId": 42}
    <- {"jobId": 42, "status": "RUNNING", "attempts": 1, "error": null, "version": 3}
    -> {"action": "subscribe", "batchId": 7}
    <- {"batchId": 7, "status": "CLOSED", "total": 100, "successful": 60, "failed": 1, "cancelled": 0, "unfinished": 39}

A client that does not read is dropped, never buffered without bound: it comes again, says `since`, and misses nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from dibs.batch import BatchProgress
from dibs.errors import DibsError
from dibs.job import BIGGEST
from dibs.masking import masked
from dibs.operations.rows import Seen
from dibs.server.access import Gate
from dibs.server.hub import Hub
from dibs.server.problems import Refusal, problem_of
from dibs.server.rows import RowName, Rows, RowSeen, row_name
from dibs.server.wire import Body, EventShown, Id, Name, RowEventShown, counts_shown, event_shown
from dibs.tokens import Access

MESSAGE = 16 * 1024  # bytes of a message from a client
SUBSCRIPTIONS = 1_000  # of one connection
UNSENT = 64 * 1024  # bytes; who still has so many to read after a moment is dropped
MOMENT = 1.0  # seconds
AT_MOST = 1024 * 1024  # bytes; who has so many is dropped at once
REMEMBERED = 10_000  # jobs of watched queues, for which a connection knows what it was told
RECHECKED = 10.0  # seconds between looks at whether tokens are still good
TOO_BIG, UNSUPPORTED = 1009, 1003

Target: TypeAlias = int | str | tuple[str, int] | RowName | None
"""What is watched: a job, a queue, a batch, a row, or everything."""


class Asked(Body):
    """What a client says."""

    action: Literal["subscribe", "unsubscribe", "ping"]
    job_id: Id | None = None
    batch_id: Id | None = None
    queue: Name | None = None
    all: Literal[True] | None = None
    table: Name | None = None
    key: int | float | str | list[int | float | str] | None = None
    since: int | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        named = sum(each is not None for each in (self.job_id, self.batch_id, self.queue, self.all, self.table))
        if (self.table is None) != (self.key is None):
            raise ValueError('a row has both "table" and "key"')
        if self.action == "ping":
            if named:
                raise ValueError("a ping names nothing")
        elif named != 1:
            raise ValueError('say one of "jobId", "batchId", "queue", "table" with "key", and "all": true')
        if self.since is not None and (self.job_id is None or not 0 <= self.since <= BIGGEST):
            raise ValueError("since must be a version of the job that was told")


class Trouble(msgspec.Struct, rename="camel", omit_defaults=True, tag_field="type", tag="error"):
    """What a client is told when its message cannot be obeyed."""

    code: str
    message: str
    job_id: int | None = None
    queue: str | None = None
    batch_id: int | None = None
    table: str | None = None
    key: Any = None


PONG = '{"type":"pong"}'
read_asked = msgspec.json.Decoder(Asked).decode


def _named(asked: Asked) -> tuple[Any, ...]:
    return asked.job_id, asked.queue, asked.batch_id, asked.table, asked.key


class Socket:
    """One client."""

    def __init__(self, websocket: WebSocket, hub: Hub, rows: Rows, gate: Gate, mask: frozenset[str]) -> None:
        self.websocket, self.hub, self.rows, self.gate, self.mask = websocket, hub, rows, gate, mask
        self.told_rows: dict[RowName, Any] = {}  # the rows it watches, with their keys as it said them
        self.told: dict[int, int] = {}  # the versions of the jobs it watches
        self.tokens: dict[Target, str | None] = {}  # by which it watches all of those, if not by its own
        self.told_in_queues: OrderedDict[int, int] = OrderedDict()
        self.queues: set[str | None] = set()
        self.batches: dict[int, str] = {}  # that it watches, and what it was told of them
        self.states: dict[Target, str] = {}  # to be sent: the last of each job, batch and row only
        self.words: deque[str] = deque()  # to be sent as well
        self.unsent = 0
        self.some = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.behind: asyncio.TimerHandle | None = None

    # What the hub says

    def tell(self, seen: Seen) -> None:
        """A state; sent if it is newer than the last."""
        told = self.told if seen.id in self.told else self.told_in_queues
        if told.get(seen.id, -1) >= seen.version:
            return
        told[seen.id] = seen.version
        if len(self.told_in_queues) > REMEMBERED:
            self.told_in_queues.popitem(last=False)
        self._state(seen.id, event_shown(seen, self.mask))

    def tell_row(self, row: RowName, seen: RowSeen) -> None:
        """A state of a row; sent in any case, since whoever says it knows what is new."""
        event = RowEventShown(
            job_id=seen.job,
            status=seen.state,
            attempts=seen.attempts,
            error=seen.error,
            table=row.table,
            key=self.told_rows[row],
            version=seen.version,
            progress=masked(seen.progress, self.mask),
        )
        self._state(row, event)

    def tell_trouble(self, row: RowName, code: str, message: str) -> None:
        """It is watched no longer."""
        key = self.told_rows[row]
        self._unsubscribe_row(row)
        self._say(Trouble(code, message, table=row.table, key=key))

    def _state(self, of: int | RowName, shown: EventShown | RowEventShown) -> None:
        self.unsent -= len(self.states.pop(of, ""))
        self.states[of] = text = msgspec.json.encode(shown).decode()
        self._more(text)

    def tell_batch(self, progress: BatchProgress) -> None:
        """Counts; sent if they are others than the last."""
        text = msgspec.json.encode(counts_shown(progress)).decode()
        if self.batches.get(progress.id) == text:
            return
        self.batches[progress.id] = text
        self.unsent -= len(self.states.pop(("batch", progress.id), ""))
        self.states["batch", progress.id] = text
        self._more(text)

    def missing_batch(self, batch_id: int) -> None:
        """There is no such batch: it is watched no longer."""
        self._unsubscribe_batch(batch_id)
        self._say(Trouble("batch_not_found", f"There is no batch {batch_id}.", batch_id=batch_id))

    def missing(self, job_id: int) -> None:
        """There is no such job: it is watched no longer."""
        self._unsubscribe_job(job_id)
        self._say(Trouble("job_not_found", f"There is no job {job_id}.", job_id=job_id))

    # What the client says

    async def run(self) -> None:
        """Until either side goes."""
        await self.websocket.accept()
        self.tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        try:
            await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._forget()
            self._end()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    def _end(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def _receive(self) -> None:
        while True:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                return await self._close(UNSUPPORTED, "Messages are texts of JSON.")
            if len(text) > MESSAGE or len(text.encode()) > MESSAGE:
                return await self._close(TOO_BIG, f"A message has {MESSAGE:,} bytes at most.")
            await self._heard(text)
            await asyncio.sleep(0)  # whoever floods us does not keep the others waiting

    async def _heard(self, text: str) -> None:
        try:
            asked = read_asked(text)
        except msgspec.MsgspecError as error:
            self._say(Trouble("invalid_message", str(error)))
            return
        if asked.action == "ping":
            self._say(PONG)
        elif asked.action == "unsubscribe":
            self._unsubscribe(asked)
        else:
            await self._subscribe(asked)

    async def _subscribe(self, asked: Asked) -> None:
        if not (await self._access(asked.token)).may("read", asked.job_id):
            self._say(Trouble("not_allowed", "This needs a token that allows it.", *_named(asked)))
        elif len(self.told) + len(self.queues) + len(self.batches) + len(self.told_rows) >= SUBSCRIPTIONS:
            text = f"A connection has {SUBSCRIPTIONS:,} subscriptions at most. Open another, or watch a queue."
            self._say(Trouble("too_many_subscriptions", text, *_named(asked)))
        elif asked.table is not None:
            await self._subscribe_row(asked.table, asked.key, asked.token)
        elif asked.job_id is not None:
            self.told[asked.job_id] = -1 if asked.since is None else asked.since
            self.tokens[asked.job_id] = asked.token
            self.hub.watch(self, asked.job_id)
        elif asked.batch_id is not None:
            self.batches[asked.batch_id] = ""
            self.tokens["batch", asked.batch_id] = asked.token
            self.hub.watch_batch(self, asked.batch_id)
        else:
            self.queues.add(asked.queue)
            self.tokens[asked.queue] = asked.token
            self.hub.watch_queue(self, asked.queue)

    async def _subscribe_row(self, table: str, key: Any, token: str | None) -> None:
        try:
            row = await self.rows.find(table, key)
        except (Refusal, DibsError) as error:
            problem = problem_of(error)
            self._say(Trouble(problem.code, problem.detail, table=table, key=key))
            return
        self.told_rows[row] = key
        self.tokens[row] = token
        self.rows.watch(self, row)

    async def _access(self, token: str | None) -> Access:
        return await (self.gate.access(self.websocket.headers) if token is None else self.gate.bearer(token))

    async def mind_tokens(self) -> None:
        """Those that were revoked, or are past their time, are good for nothing any more."""
        for target, token in [*self.tokens.items()]:
            job_id = target if isinstance(target, int) else None
            if (await self._access(token)).may("read", job_id):
                continue
            if isinstance(target, RowName):
                self.tell_trouble(target, "not_allowed", "The token is good no longer.")
                continue
            batch_id = target[1] if isinstance(target, tuple) else None
            if job_id is not None:
                self._unsubscribe_job(job_id)
            elif batch_id is not None:
                self._unsubscribe_batch(batch_id)
            else:
                self._unsubscribe_queue(target)
            queue = target if isinstance(target, str) else None
            self._say(Trouble("not_allowed", "The token is good no longer.", job_id, queue, batch_id))

    def _unsubscribe(self, asked: Asked) -> None:
        if asked.job_id is not None:
            self._unsubscribe_job(asked.job_id)
        elif asked.batch_id is not None:
            self._unsubscribe_batch(asked.batch_id)
        elif asked.table is not None:
            self._unsubscribe_row(row_name(asked.table, asked.key))
        else:
            self._unsubscribe_queue(asked.queue)

    def _unsubscribe_row(self, row: RowName) -> None:
        self.rows.unwatch(self, row)
        self.told_rows.pop(row, None)
        self.tokens.pop(row, None)

    def _unsubscribe_job(self, job_id: int) -> None:
        self.hub.unwatch(self, job_id)
        self.told.pop(job_id, None)
        self.tokens.pop(job_id, None)

    def _unsubscribe_batch(self, batch_id: int) -> None:
        self.hub.unwatch_batch(self, batch_id)
        self.batches.pop(batch_id, None)
        self.tokens.pop(("batch", batch_id), None)

    def _unsubscribe_queue(self, queue: Any) -> None:
        self.queues.discard(queue)
        self.hub.unwatch_queue(self, queue)
        self.tokens.pop(queue, None)

    def _forget(self) -> None:
        for job_id in self.told:
            self.hub.unwatch(self, job_id)
        for queue in self.queues:
            self.hub.unwatch_queue(self, queue)
        for batch_id in self.batches:
            self.hub.unwatch_batch(self, batch_id)
        for row in self.told_rows:
            self.rows.unwatch(self, row)

    # Sending

    def _say(self, what: Trouble | str) -> None:
        text = what if isinstance(what, str) else msgspec.json.encode(what).decode()
        self.words.append(text)
        self._more(text)

    def _more(self, text: str) -> None:
        """One more to be sent. Who has much to read has a moment to do so."""
        self.unsent += len(text)
        self.some.set()
        if self.unsent > AT_MOST:
            self._end()
        elif self.unsent > UNSENT and self.behind is None:
            self.behind = asyncio.get_running_loop().call_later(MOMENT, self._still_behind)

    def _still_behind(self) -> None:
        self.behind = None
        if self.unsent > UNSENT:
            self._end()

    async def _send(self) -> None:
        """One at a time, as fast as the client reads."""
        try:
            while True:
                await self.some.wait()
                self.some.clear()
                while self.words or self.states:
                    text = self.words.popleft() if self.words else self.states.pop(next(iter(self.states)))
                    self.unsent -= len(text)
                    await self.websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, OSError):
            return  # it is gone

    async def _close(self, code: int, why: str) -> None:
        await self.websocket.close(code, why)


class Sockets:
    """All that are open. One task looks at their tokens: with thousands of them, one each would be a lot of memory."""

    def __init__(self) -> None:
        self.open: set[Socket] = set()
        self.minding: asyncio.Task[None] | None = None

    async def run(self, socket: Socket) -> None:
        """Until either side goes."""
        self.open.add(socket)
        if self.minding is None:
            self.minding = asyncio.create_task(self._mind(), name="sockets mind tokens")
        try:
            await socket.run()
        finally:
            self.open.discard(socket)

    async def _mind(self) -> None:
        try:
            while self.open:
                await asyncio.sleep(RECHECKED)
                for socket in [*self.open]:
                    with suppress(DibsError):  # nobody can be asked: next time
                        await socket.mind_tokens()
                    await asyncio.sleep(0)
        finally:
            self.minding = None

    async def aclose(self) -> None:
        """Look no more."""
        if self.minding is not None:
            self.minding.cancel()
