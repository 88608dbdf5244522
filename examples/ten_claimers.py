"""Ten processes claim from one queue at the same time, and a ledger that each of them writes is the judge.

Run it as it is, or on a database of your own: python examples/ten_claimers.py postgresql://localhost/shop
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dibs import Dibs, Task

PROCESSES, JOBS = 10, 3_000


def app_for(url: str, ledger: Path) -> tuple[Dibs, Task[[int], int]]:
    """The app of one process, and its task: it notes in the process's own ledger which job it was given."""
    app = Dibs(url)
    book = ledger / f"{os.getpid()}.txt"

    @app.task(name="count_me", queue="demo")
    def count_me(number: int) -> int:
        with book.open("a") as lines:
            lines.write(f"{number}\n")
        return number

    return app, count_me


def claim_all(url: str, ledger: Path, start: Event) -> None:
    """What each of the ten does: wait for the starting signal, then take jobs until none is left."""
    app, _ = app_for(url, ledger)
    start.wait()
    app.drain(queues=["demo"], concurrency=5)


def claimed_by(ledger: Path) -> dict[str, list[int]]:
    """What the ledgers say, process by process."""
    return {book.stem: [int(line) for line in book.read_text().split()] for book in sorted(ledger.glob("*.txt"))}


def picture(ledger: Path) -> Table:
    """How far each process is."""
    table = Table("process", "jobs", "", box=None)
    for name, numbers in claimed_by(ledger).items():
        table.add_row(name, str(len(numbers)), "[green]" + "━" * (len(numbers) * 60 * PROCESSES // JOBS // 4))
    return table


def main() -> int:
    """Add the jobs, let ten processes loose, show them, and judge."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="dibs-demo-") as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/demo.db"
        ledger = Path(folder) / "ledger"
        ledger.mkdir()
        app, count_me = app_for(url, ledger)
        app.migrate()
        began = time.perf_counter()
        ids = app.enqueue_many(count_me.call(number=number) for number in range(JOBS))
        console.print(f"{len(ids):,} jobs added to [bold]{url}[/] in {time.perf_counter() - began:.2f} s")
        return race(console, url, ledger)


def race(console: Console, url: str, ledger: Path) -> int:
    """Ten processes at once; what their ledgers add up to."""
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    claimers = [context.Process(target=claim_all, args=(url, ledger, start)) for _ in range(PROCESSES)]
    for claimer in claimers:
        claimer.start()
    start.set()
    began = time.perf_counter()
    with Live(picture(ledger), console=console, refresh_per_second=10) as live:
        while any(claimer.is_alive() for claimer in claimers):
            live.update(picture(ledger))
            time.sleep(0.1)
        live.update(picture(ledger))
    counted = Counter(number for numbers in claimed_by(ledger).values() for number in numbers)
    twice = sum(1 for times in counted.values() if times > 1)
    lost = JOBS - len(counted)
    console.print(f"{PROCESSES} processes, {time.perf_counter() - began:.1f} s")
    colour = "green" if not twice and not lost else "red"
    console.print(f"[bold {colour}]the ledger says: {len(counted):,} jobs ran, {twice} ran twice, {lost} were lost")
    return 1 if twice or lost else 0


if __name__ == "__main__":
    sys.exit(main())
