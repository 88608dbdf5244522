"""A network that fails when told to: a TCP proxy in front of a PostgreSQL server, which knows where an answer ends.

It sees the server's messages (a type, a length, a body), so that it can lose the answer to a statement just after the
server has committed it: the last message of an answer is only sent then. It does not speak TLS.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65_536
HEAD = struct.Struct("!cI")  # of a message: its type, and its length without the type
READY_FOR_QUERY = b"Z"
PLAIN = "sslmode=disable&gssencmode=disable"  # else a connection begins with bytes that are no messages
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by RST, not by FIN
PATIENCE_SECONDS = 10.0


@dataclass(eq=False)
class Link:
    """One client, and the connection to the server that was made for it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    connected: bool = False  # the server has let the client in

    def abort(self) -> None:
        """End both connections, without a good-bye."""
        for writer in (self.client, self.server):
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class Proxy:
    """Passes everything on, but for what it is told to spoil. Its methods may be called from any thread."""

    def __init__(self, url: str) -> None:
        self.direct, self._url = url, urlsplit(url)  # past the proxy
        self.spoiled = 0  # answers lost and connections cut, as ordered
        self._links: set[Link] = set()
        self._lose = 0  # the answer to lose, counted from the next
        self._victim: Link | None = None  # whose answer is being lost
        self._cut: int | None = None  # bytes still to be passed on before a connection is cut
        self._swallow = False
        self._hanging = False
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._port = 0

    @classmethod
    @contextlib.contextmanager
    def before(cls, url: str) -> Iterator["Proxy"]:
        """A proxy in front of the server at this address."""
        proxy = cls(url)
        thread = threading.Thread(target=proxy._loop.run_forever, name="proxy", daemon=True)
        thread.start()
        try:
            proxy._port = asyncio.run_coroutine_threadsafe(proxy._listen(), proxy._loop).result(PATIENCE_SECONDS)
            yield proxy
        finally:
            asyncio.run_coroutine_threadsafe(proxy._close(), proxy._loop).result(PATIENCE_SECONDS)
            proxy._loop.call_soon_threadsafe(proxy._loop.stop)
            thread.join()
            proxy._loop.close()

    @property
    def url(self) -> str:
        """The address of the same database through this proxy."""
        user = self._url.netloc.rpartition("@")[0]
        query = "&".join(part for part in (self._url.query, PLAIN) if part)
        return urlunsplit(self._url._replace(netloc=f"{user}@127.0.0.1:{self._port}", query=query))

    def lose_answer(self, number: int = 1) -> None:
        """Lose one answer, the next or a later one, to a client that is connected; then cut its connection.

        The server has carried the statement out by then, and committed it.
        """
        self._order("_lose", number)

    def cut_after(self, size: int) -> None:
        """Pass on so many bytes from the server; then cut the connection that brought them."""
        self._order("_cut", size)

    def swallow_answers(self) -> None:
        """From now on nothing comes from the server any more, while connections stay open."""
        self._order("_swallow", True)

    def freeze(self) -> None:
        """Hold up everything on the connections that there are now, in both directions. New ones are not affected."""
        self._on_each(lambda link: link.flowing.clear())

    def thaw(self) -> None:
        """Deliver what was held up, even if the client has gone."""
        self._on_each(lambda link: link.flowing.set())

    def hang(self) -> None:
        """Keep all connections, accept new ones, and pass nothing on."""
        self._order("_hanging", True)
        self.freeze()

    def go_on(self) -> None:
        """Deliver what was held up, and all that comes."""
        self._order("_hanging", False)
        self.thaw()

    def reset(self) -> None:
        """Cut every connection that there is now."""
        self._on_each(Link.abort)

    def _order(self, name: str, value: int) -> None:
        async def ordered() -> None:
            setattr(self, name, value)

        asyncio.run_coroutine_threadsafe(ordered(), self._loop).result(PATIENCE_SECONDS)

    def _on_each(self, act: Callable[[Link], None]) -> None:
        async def acted() -> None:
            for link in self._links:
                act(link)

        asyncio.run_coroutine_threadsafe(acted(), self._loop).result(PATIENCE_SECONDS)

    async def _listen(self) -> int:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def _close(self) -> None:
        self._closing = True
        for listening in self._listener.sockets:
            self._loop.remove_reader(listening.fileno())
        for link in self._links:
            link.flowing.set()
            link.abort()
        # Whoever is just being let in becomes a task of its own only now: so look again. Until then the listener must
        # stay, because asyncio forgets a connection whose listener closes while it is being let in.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        self._listener.close()
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next turn

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(self._url.hostname, self._url.port)
        except OSError:
            to_client.transport.abort()
            return
        link = Link(to_client, to_server)
        if self._closing:
            link.abort()
            return
        if not self._hanging:
            link.flowing.set()
        self._links.add(link)
        try:
            await asyncio.gather(self._up(link, from_client), self._down(link, from_server))
        except OSError:
            pass  # one side has gone
        finally:
            self._links.discard(link)
            link.abort()

    async def _up(self, link: Link, from_client: asyncio.StreamReader) -> None:
        while data := await from_client.read(CHUNK):
            await link.flowing.wait()
            link.server.write(data)
            await link.server.drain()
        await link.flowing.wait()
        link.server.write_eof()

    async def _down(self, link: Link, from_server: asyncio.StreamReader) -> None:
        pending = b""
        while data := await from_server.read(CHUNK):
            await link.flowing.wait()
            pending += data
            while (message := _first_message(pending)) is not None:
                pending = pending[len(message) :]
                self._pass_on(link, message)
            await link.client.drain()
        link.client.write_eof()

    def _pass_on(self, link: Link, message: bytes) -> None:
        last = message.startswith(READY_FOR_QUERY)
        if self._is_to_be_lost(link):
            if last:
                self._spoil(link)
        elif self._cut is not None:
            passed, self._cut = message[: self._cut], self._cut - len(message)
            link.client.write(passed)
            if self._cut <= 0:
                self._spoil(link)
        elif not self._swallow:
            link.client.write(message)
        if last:
            self._lose = max(self._lose - (1 if link.connected and self._lose > 1 else 0), 0)
            link.connected = True

    def _is_to_be_lost(self, link: Link) -> bool:
        if self._lose == 1 and self._victim is None and link.connected:
            self._victim = link
        return self._victim is link

    def _spoil(self, link: Link) -> None:
        self.spoiled += 1
        self._lose, self._victim, self._cut = 0, None, None
        link.abort()


def _first_message(data: bytes) -> bytes | None:
    """The first whole message in what has come so far."""
    if len(data) < HEAD.size:
        return None
    _, length = HEAD.unpack_from(data)
    return data[: 1 + length] if len(data) > length else None
