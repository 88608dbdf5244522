"""How fast are jobs added over HTTP? How many can watch their jobs on one server, how late do they hear of it, and what
does it cost a worker that they do?"""
# ruff: noqa: E501  # texts for others

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from websockets.asyncio.client import connect
from websockets.sync.client import connect as sync_connect

from benchmarks.loops import fill, open_engine
from benchmarks.places import Bench, checkpoint
from benchmarks.report import Bound, Figure, rate
from benchmarks.workers import JOBS, QUICK_JOBS, at_work, begin, paused, worked
from dibs.job import NewJob
from dibs.operations import jobs
from dibs.payload import encode
from tests.servers.ports import free_port

REQUESTS, QUICK_REQUESTS = 6_000, 1_000  # in a slice
SLICES = 5
PAIRS = 3  # in a round: with and without
CONNECTIONS = 16
CLIENTS, QUICK_CLIENTS = 5_000, 500
CHANGES = 1_000  # a second
SECONDS, QUICK_SECONDS = 60, 8
STEP = 0.05  # seconds between the commits of changes
PROCESSES = 4  # that the clients are in
PATIENCE = 120.0
PAYLOAD = {"i": 1, "note": "x" * 60}

APP = """
from dibs import Dibs
app = Dibs({url!r})

@app.task(name="noop")
async def noop(i: int, note: str) -> None: ...
"""
# One endpoint that checks nothing and adds a row: what is left when there is no dibs.
BARE = """
import json, sys
import psycopg, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

idle = []

async def add(request):
    body = json.loads(await request.body())
    raw = idle.pop() if idle else await psycopg.AsyncConnection.connect({url!r}, autocommit=True)
    cursor = await raw.execute("insert into floor_jobs (type, payload) values (%s, %s) returning id",
                               [body["type"], json.dumps(body["payload"])], prepare=True)
    row = await cursor.fetchone()
    idle.append(raw)
    return JSONResponse({{"jobId": row[0], "status": "PENDING"}}, 201)

uvicorn.run(Starlette(routes=[Route("/api/jobs", add, methods=["POST"])]), port={port}, log_config=None, access_log=False)
"""


def measure(bench: Bench) -> Iterator[Figure]:
    """Adding, then watching."""
    if bench.wants("adding over HTTP"):
        bench.say("live: adding over HTTP")
        yield _adding(bench)
    if bench.wants("watching"):
        bench.say("live: watching")
        yield from _watching(bench)
    if bench.wants("telling"):
        bench.say("live: telling")
        yield from _telling(bench)


# Adding


def _adding(bench: Bench) -> Figure:
    count = bench.size(REQUESTS, QUICK_REQUESTS)
    ratios, ours, theirs = [], [], []
    with bench.database() as url:
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute(
                "create table floor_jobs (id bigint generated always as identity primary key, type text, payload jsonb)"
            )
        with _dibs(url) as (port, _), _bare(url) as floor:
            for _ in range(bench.rounds):
                for number in range(SLICES + 1):
                    pair = [_posted(each, count // SLICES) for each in ((port, floor) if number % 2 else (floor, port))]
                    mine, bare = pair if number % 2 else pair[::-1]
                    if number:  # the first is not counted
                        ours.append(mine)
                        theirs.append(bare)
                        ratios.append(mine / bare)
    return Figure(
        "adding over HTTP, one at a time on 16 connections",
        (median(ratios),),
        Bound(0.5),
        ours=rate(median(ours)),
        floor=rate(median(theirs)),
    )


def _posted(port: int, count: int) -> float:
    """Requests a second."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(pool.apply(_post_all, (port, count)))


def _post_all(port: int, count: int) -> float:
    return asyncio.run(_post(port, count))


async def _post(port: int, count: int) -> float:
    body = encode({"type": "noop", "payload": PAYLOAD})
    head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    text = head.encode() + body
    left = count

    async def client() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            writer.write(text)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 201"), answer
            length = next(
                int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            await reader.readexactly(length)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return count / (time.perf_counter() - began)


# Watching


def _watching(bench: Bench) -> Iterator[Figure]:
    clients, seconds = bench.size(CLIENTS, QUICK_CLIENTS), bench.size(SECONDS, QUICK_SECONDS)
    context = multiprocessing.get_context("spawn")
    with bench.database() as url, _dibs(url) as (port, server):
        engine = open_engine(url)
        engine.migrate()
        ids = list(engine.run(jobs.add_many([NewJob("noop", encode(PAYLOAD))] * clients)))
        ready, heard = context.Barrier(PROCESSES + 1), context.Queue()
        crew = [
            context.Process(target=_watch_all, args=(port, ids[number::PROCESSES], ready, heard))
            for number in range(PROCESSES)
        ]
        for each in crew:
            each.start()
        ready.wait(PATIENCE)
        bench.say(f"live: {clients:,} are watching; the server has {_memory(server):.0f} MB")
        _change(url, ids, seconds)
        most = _memory(server)
        told = [heard.get(timeout=PATIENCE) for _ in crew]
        for each in crew:
            each.join()
        engine.close()
    waits = sorted(wait for part in told for wait in part["waits"])
    ended = sum(part["ended"] for part in told)
    cuts = quantiles(waits, n=100)
    title = f"watching: {clients:,} clients, {CHANGES:,} changes a second for {seconds} s"
    yield Figure(f"{title}: heard the end", (100 * ended / clients,), Bound(100), " %")
    yield Figure(
        f"{title}: p99", (1000 * cuts[98],), Bound(300, at_most=True), " ms", ours=f"p50 {1000 * cuts[49]:.0f} ms"
    )
    yield Figure(f"{title}: memory", (most,), Bound(250, at_most=True), " MB")


CHANGE = """
with changed as (
  update dibs.jobs set version = version + 1, progress = jsonb_build_object('at', extract(epoch from clock_timestamp()))
  where id = any (%(ids)s) returning id)
select pg_notify('job_events', json_build_object('jobIds', json_agg(id))::text) from changed
"""
END = """
with gone as (delete from dibs.jobs where id = any (%(ids)s) returning *),
kept as (
  insert into dibs.history (id, run_at, created_at, finished_at, expires, version, rank, state, attempts, max_attempts, crashes, queue, type, progress)
  select id, run_at, created_at, now(), now()::date + 7, version + 1, rank, 3, 1, 3, 0, queue, type,
    jsonb_build_object('at', extract(epoch from clock_timestamp())) from gone)
select pg_notify('job_events', json_build_object('jobIds', json_agg(id))::text) from gone
"""


def _change(url: str, ids: list[int], seconds: int) -> None:
    """So many states a second, as a worker would write them; then everyone's end."""
    at_once = int(CHANGES * STEP)
    with psycopg.connect(url, autocommit=True) as raw:
        began, place = time.monotonic(), 0
        for number in range(int(seconds / STEP)):
            raw.execute(CHANGE, {"ids": [ids[(place + n) % len(ids)] for n in range(at_once)]})
            place += at_once
            time.sleep(max(0.0, began + (number + 1) * STEP - time.monotonic()))
        for start in range(0, len(ids), at_once):
            raw.execute(END, {"ids": ids[start : start + at_once]})
            time.sleep(STEP)


def _watch_all(port: int, ids: list[int], ready: Any, heard: Any) -> None:
    heard.put(asyncio.run(_watch(port, ids, ready)))


async def _watch(port: int, ids: list[int], ready: Any) -> dict[str, Any]:
    waits: list[float] = []
    ended = 0
    subscribed, slots = asyncio.Semaphore(0), asyncio.Semaphore(50)

    async def client(job_id: int) -> None:
        nonlocal ended
        async with slots:
            socket = await connect(f"ws://127.0.0.1:{port}/ws", compression=None, max_queue=4, ping_interval=None)
            await socket.send(json.dumps({"action": "subscribe", "jobId": job_id}))
            await socket.recv()
        subscribed.release()
        async with socket:
            async for text in socket:
                event = json.loads(text)
                waits.append(time.time() - event["progress"]["at"])
                if event["status"] == "SUCCESSFUL":
                    ended += 1
                    return

    async with asyncio.TaskGroup() as group:
        for job_id in ids:
            group.create_task(client(job_id))
        for _ in ids:
            await subscribed.acquire()
        await asyncio.to_thread(ready.wait, PATIENCE)
    return {"waits": waits, "ended": ended}


# Telling: what it costs a worker that others are told of its jobs


def _telling(bench: Bench) -> Iterator[Figure]:
    count = bench.size(JOBS, QUICK_JOBS)
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for number in range(PAIRS * bench.rounds):
        for watched, found in ratios.items():
            order = ("", ", events=False") if number % 2 else (", events=False", "")
            done = {settings: _worked(bench, count, settings, watched=watched) for settings in order}
            found.append(done[""] / done[", events=False"])
    yield Figure("a worker that tells of its jobs, nobody listens", tuple(ratios[False]), Bound(0.95))
    yield Figure("a worker that tells of its jobs, somebody watches one", tuple(ratios[True]), Bound(0.9))


def _worked(bench: Bench, count: int, settings: str, *, watched: bool) -> float:
    """Jobs a second of a worker; with a server beside it, on which somebody watches a job."""
    with bench.database() as url, ExitStack() as stack:
        fill(url, count)
        if watched:
            port, _ = stack.enter_context(_dibs(url))
            watcher = stack.enter_context(sync_connect(f"ws://127.0.0.1:{port}/ws"))
            watcher.send(json.dumps({"action": "subscribe", "jobId": 1}))
            watcher.recv()
        checkpoint(url)
        with paused(url) as engine, at_work(url, settings=settings):
            begin(engine)
            return worked(engine, count)


# Servers


@contextmanager
def _dibs(url: str) -> Iterator[tuple[int, int]]:
    """`dibs serve`: its port and its process."""
    with TemporaryDirectory() as folder:
        Path(folder, "bench_app.py").write_text(APP.format(url=url))
        subprocess.run(
            [sys.executable, "-m", "dibs", "db", "migrate", url],
            check=True,
            env=_environment(),
            stdout=subprocess.DEVNULL,
        )
        port = free_port()
        with _running(
            [sys.executable, "-m", "dibs", "serve", "bench_app:app", "--port", str(port)], port, folder
        ) as pid:
            yield port, pid


@contextmanager
def _bare(url: str) -> Iterator[int]:
    port = free_port()
    with _running([sys.executable, "-c", BARE.format(url=url, port=port)], port, None):
        yield port


@contextmanager
def _running(command: list[str], port: int, folder: str | None) -> Iterator[int]:
    process = subprocess.Popen(command, cwd=folder, env=_environment(), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _memory(pid: int) -> float:
    """Megabytes, at most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
