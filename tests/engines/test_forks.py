"""A process that forks: parent and child go on, each on connections of their own.

Each test is a small program, because a test process that forks itself has threads, and would take them along.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from dibs import Dibs
from tests.apps import count_jobs, nothing_is_locked, on_postgres, on_sqlite

pytestmark = pytest.mark.slow

BEGIN = """
import asyncio, os, sys, threading, warnings
from dibs import Dibs
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, that a process with threads should not fork
app = Dibs(sys.argv[1])
task = app.task(name="note")(lambda who: None)

def note(who):
    return task.enqueue(who=who).id

def connections():
    engine = app.engine
    return [each.raw for each in engine._connections.values()] if engine.name == "sqlite" else list(engine._idle)

def fork(child, end=os._exit):
    '''Let a child do something; it has to end well.'''
    number = os.fork()
    if number:
        return number
    try:
        child()
    except BaseException as error:
        print(f"child: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    end(0)

def join(number):
    _, status = os.waitpid(number, 0)
    assert status == 0, status

"""


def run(program: str, url: str) -> str:
    done = subprocess.run([sys.executable, "-c", BEGIN + program, url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def notes(app: Dibs) -> list[str]:
    return sorted(app.get(number).payload["who"] for number in range(1, count_jobs(app) + 1))


def test_parent_and_child_both_add_jobs(url: str, app: Dibs) -> None:
    program = """
note("parent before")
child = fork(lambda: (note("child"), note("child again")))
note("parent meanwhile")
join(child)
note("parent after")
"""
    run(program, url)
    assert notes(app) == ["child", "child again", "parent after", "parent before", "parent meanwhile"]
    assert nothing_is_locked(url)


def test_a_child_that_ends_like_any_program_leaves_the_parent_alone(url: str, app: Dibs) -> None:
    """Its interpreter tidies up, inherited objects included."""
    program = """
note("parent")
app.get(1)
join(fork(lambda: note("child"), end=sys.exit))
note("parent after")
"""
    run(program, url)
    assert notes(app) == ["child", "parent", "parent after"]


def test_a_child_of_a_child(url: str, app: Dibs) -> None:
    program = """
def child():
    note("child")
    join(fork(lambda: note("grandchild")))
    note("child after")
note("parent")
join(fork(child))
note("parent after")
"""
    run(program, url)
    assert notes(app) == ["child", "child after", "grandchild", "parent", "parent after"]


def test_many_children_of_multiprocessing(url: str, app: Dibs) -> None:
    program = """
import multiprocessing
note("parent")
context = multiprocessing.get_context("fork")
children = [context.Process(target=lambda: [note("child") for _ in range(10)]) for _ in range(4)]
for child in children: child.start()
for child in children: child.join()
assert [child.exitcode for child in children] == [0] * 4
"""
    run(program, url)
    assert notes(app) == ["child"] * 40 + ["parent"]


def test_async_code_before_and_after(url: str, app: Dibs) -> None:
    program = """
async def add(who):
    await task.aenqueue(who=who)
    await app.aclose()

async def add_and_leave_open(who):
    await task.aenqueue(who=who)

loop = asyncio.new_event_loop()
loop.run_until_complete(add_and_leave_open("parent"))
child = fork(lambda: asyncio.run(add("child")))
join(child)
loop.run_until_complete(add("parent after"))
"""
    run(program, url)
    assert notes(app) == ["child", "parent", "parent after"]


def test_a_child_may_drain(url: str, app: Dibs) -> None:
    program = """
note("one")
note("two")
def child():
    assert app.drain().successful == 2
join(fork(child))
note("three")
assert app.drain().successful == 1
"""
    run(program, url)


@on_postgres
def test_what_a_child_inherits_it_neither_uses_nor_closes(url: str) -> None:
    program = """
note("parent")
(mine,) = connections()
backend = mine.info.backend_pid

def child():
    note("child")
    (other,) = connections()
    assert other is not mine and other.info.backend_pid != backend
    assert not mine.closed
    app.close()
    assert other.closed and not mine.closed

join(fork(child))
note("parent after")
assert connections() == [mine]
assert mine.execute("select pg_backend_pid()").fetchone() == (backend,)
"""
    run(program, url)


@on_sqlite
def test_nothing_of_a_file_is_open_while_a_process_forks(url: str) -> None:
    """SQLite's own notes on its locks would be inherited, and be wrong."""
    program = """
def open_files():
    return [name for name in map(os.readlink, (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}"))) if ".db" in name]

note("parent")
app.get(1)
assert open_files()
def child():
    assert open_files() == []
join(fork(child))
note("parent after")
"""
    run(program, url)


@on_sqlite
@pytest.mark.parametrize("role", ["work", "listening"])
def test_what_a_child_commits_stays_when_the_parent_closes(url: str, app: Dibs, role: str) -> None:
    program = f"""
from contextlib import AsyncExitStack
note("parent")

async def listen(stack):
    hints = await stack.enter_async_context(app.engine.listen())
    return hints

async def main():
    async with AsyncExitStack() as stack:
        hints = await listen(stack) if {role == "listening"} else None
        to_parent, to_child = os.pipe(), os.pipe()
        def child():
            note("child before")
            os.write(to_parent[1], b"x")
            os.read(to_child[0], 1)
            note("child after")
        number = fork(child)
        os.read(to_parent[0], 1)
        if hints is not None:
            assert (await anext(hints)).channel == "dibs_wake"  # it looks again after the fork
        app.close()
    os.write(to_child[1], b"x")
    join(number)

asyncio.run(main())
"""
    run(program, url)
    assert notes(app) == ["child after", "child before", "parent"]


def test_a_fork_while_another_thread_is_busy(url: str, app: Dibs) -> None:
    """Its locks are not inherited as locked."""
    program = """
stop = threading.Event()
def busy():
    while not stop.is_set():
        note("thread")
thread = threading.Thread(target=busy)
thread.start()
for _ in range(5):
    join(fork(lambda: note("child")))
stop.set()
thread.join()
"""
    run(program, url)
    assert nothing_is_locked(url)


@on_sqlite
def test_a_fork_in_the_middle_of_adding(url: str, app: Dibs) -> None:
    """The transaction of this very thread goes on in the parent, and in the parent only."""
    program = """
def calls():
    yield task.call(who="parent 1")
    number = fork(lambda: os._exit(0))
    join(number)
    yield task.using(priority=9).call(who="parent 2")
assert len(app.enqueue_many(calls())) == 2
note("parent 3")
"""
    run(program, url)
    assert notes(app) == ["parent 1", "parent 2", "parent 3"]


FORK_BESIDE_A_SUBMIT = """
import os, threading, time
from dibs.engines import engine as forks
from dibs.engines.sqlite.engine import SqliteEngine
from concurrent.futures import ThreadPoolExecutor

engine, pool = SqliteEngine("fork.db"), ThreadPoolExecutor(1)

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

forking = threading.Thread(target=fork, daemon=True)
with engine._lock:  # as a turn has it that is handed to its thread
    forking.start()
    while not forks._one_fork_at_a_time.locked():
        time.sleep(0.001)
    pool.submit(int).result(5)
forking.join(5)
assert not forking.is_alive()
"""


def test_a_fork_and_a_thread_pool_do_not_wait_for_each_other(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK_BESIDE_A_SUBMIT], cwd=tmp_path, check=True, timeout=30)
