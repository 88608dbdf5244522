"""A provider who charges: a real HTTP server in a process of its own. It counts what it accepted, and errs at times.

POST /submit {"text", "key", "pid"} -> {"id"};  GET /find?key= -> {"id"};  GET /task?id= -> {"result", "usage"}
"""

import asyncio
import json
import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

PRICE = 3  # what every submission costs


@dataclass
class Till:
    """What it has accepted, written down before it answers. Of `kills` clients it ends the process while they wait."""

    ledger: Path
    honours_keys: bool
    kills: int
    seed: int = 7
    by_key: dict[str, str] = field(default_factory=dict)
    killed: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        self.rough = self.kills > 0
        self.chance = random.Random(self.seed)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        value = scope["query_string"].decode().partition("=")[2]
        match scope["path"]:
            case "/submit":
                answer: Any = await self.submit(**json.loads(body))
            case "/find":
                answer = {"id": self.by_key.get(value)}
            case _:
                answer = {"result": f"of {value}", "usage": PRICE}
        if answer is not None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def submit(self, text: str, key: str, pid: int) -> Any:
        """Accept it; at times the client is killed before, at times after, and at times it waits in vain."""
        fate = self.chance.random()
        if self.kills > 0 and fate < 0.02:
            return self.kill(pid)
        if not (self.honours_keys and key in self.by_key):
            self.count += 1
            self.by_key[key] = f"task-{self.count}"
            with self.ledger.open("a") as file:
                file.write(f"{text} {key} {self.by_key[key]}\n")
        if self.kills > 0 and fate < 0.05:
            return self.kill(pid)
        if self.rough and fate > 0.99:
            await asyncio.sleep(3600)  # accepted, and never answered
        return {"id": self.by_key[key]}

    def kill(self, pid: int) -> None:
        """SIGKILL to whoever asks."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills -= 1
            self.killed += 1
            (self.ledger.parent / "killed").write_text(str(self.killed))


def open_till(ledger: Path, port_file: Path, honours_keys: bool, kills: int) -> None:
    """Serve until killed; says at which port."""

    class Announced(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            port_file.with_suffix(".new").write_text(str(self.servers[0].sockets[0].getsockname()[1]))
            port_file.with_suffix(".new").rename(port_file)

    till = Till(ledger, honours_keys, kills)
    Announced(uvicorn.Config(till, port=0, log_level="error", lifespan="off", timeout_keep_alive=1)).run()


async def ask(port: int, method: str, path: str, body: Any = None) -> Any:
    """One request, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: till\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        text = await reader.read()
    finally:
        writer.close()
    if not text:
        raise ConnectionError("no answer")
    _, _, answer = text.partition(b"\r\n\r\n")
    return json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])  # it may come in chunks
