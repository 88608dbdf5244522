"""A TCP proxy in front of a server, which can go wrong in the ways that networks do."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Passes bytes on, until told not to."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: list[socket.socket] = []
        self._passing = threading.Event()
        self._passing.set()
        self._cut_at_answer = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @classmethod
    @contextmanager
    def before(cls, url: str) -> Iterator["Proxy"]:
        """A proxy for one test."""
        proxy = cls(url)
        try:
            yield proxy
        finally:
            proxy._listener.close()
            proxy._passing.set()
            proxy.cut()

    @property
    def url(self) -> str:
        """The same database through the proxy."""
        host, port = self._listener.getsockname()
        return urlunsplit(self._url._replace(netloc=f"{self._url.username}@{host}:{port}"))

    def hang(self) -> None:
        """Keep all connections, accept new ones, and pass nothing on."""
        self._passing.clear()

    def go_on(self) -> None:
        """Pass on what was held up, and all that comes."""
        self._passing.set()

    def cut(self) -> None:
        """Break every connection."""
        for link in self._links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self._links.clear()

    def cut_at_the_next_answer(self) -> None:
        """Let one request through, and break the connection instead of passing its answer on."""
        self._cut_at_answer.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._url.hostname, self._url.port))
                self._links += [client, server]
                threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with source, target, contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passing.wait()
                if answers and self._cut_at_answer.is_set():
                    self._cut_at_answer.clear()
                    break
                target.sendall(data)
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
