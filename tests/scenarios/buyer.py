"""Who pays a provider: invocations that overlap, with dibs and without."""

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from dibs import Dibs, Done
from tests.scenarios.till import ask

LEASE, BEAT = 2.0, 0.2


def shop(url: str, port: int, *, honours_keys: bool) -> tuple[Dibs, Any]:
    """An app with a task for that provider."""
    app = Dibs(url, lease=LEASE, beat=BEAT)

    class Summarise:
        async def submit(self, text: str, key: str) -> str:
            answer = await ask(port, "POST", "/submit", {"text": text, "key": key, "pid": os.getpid()})
            return str(answer["id"])

        async def poll(self, task_id: str) -> Done:
            answer = await ask(port, "GET", f"/task?id={task_id}")
            return Done(answer["result"], usage=answer["usage"])

    class Careful(Summarise):
        async def reconcile(self, text: str, key: str) -> str | None:
            answer = await ask(port, "GET", f"/find?key={key}")
            return None if answer["id"] is None else str(answer["id"])

    declare = app.provider_task(
        name="summarise",
        poll_every=0.05,
        max_attempts=50,
        retry=0.05,
        timeout=2,
        after_crash="resubmit" if honours_keys else None,
    )
    return app, declare(Summarise if honours_keys else Careful)


def invoke(url: str, port: int, honours_keys: bool) -> None:
    """One serverless invocation."""
    app, _ = shop(url, port, honours_keys=honours_keys)
    app.drain(limit=1000, concurrency=25)


def naive(url: str, port: int, ready: Path, others: int) -> None:
    """The loop that many have: SELECT what is queued, submit it, UPDATE."""
    with closing(connect(url)) as connection:
        items = connection.execute("select id, text from items where status = 'queued' order by id").fetchall()
        (ready / str(os.getpid())).touch()
        while len(list(ready.iterdir())) < others:  # the others have looked, too
            time.sleep(0.001)
        for number, text in items:
            answer = asyncio.run(ask(port, "POST", "/submit", {"text": text, "key": str(os.getpid()), "pid": 0}))
            connection.execute(f"update items set status = 'done', task_id = '{answer['id']}' where id = {number}")


def connect(url: str) -> Any:
    """The driver's own connection, committing by itself."""
    if url.startswith("sqlite:///"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
    return psycopg.connect(url, autocommit=True)
