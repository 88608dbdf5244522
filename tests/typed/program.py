"""What a type checker has to see: every line with `# wrong` is one, and no other. It is checked, never run."""

from dataclasses import dataclass
from typing import TypedDict

from dibs import Dibs, Done, Job, current_job

app = Dibs("sqlite:///typed.db")


@dataclass
class Address:
    """An argument of its own class."""

    street: str
    number: int = 1


class Size(TypedDict):
    """Another."""

    width: int


def find(name: str, times: int = 1) -> Done | None:
    """A reconcile hook."""
    return Done(name) if times else None


@app.task
def greet(name: str, times: int = 1) -> str:
    """Bare."""
    return name * times


@app.task(queue="mail", max_attempts=5, timeout=60, process=True, reconcile=find)
def send(name: str, times: int = 1) -> str:
    """With options."""
    return name * times


@app.task(retry=[1, 10], tags=["a"])
async def deliver(address: Address, size: Size) -> int:
    """A coroutine."""
    current_job().progress(1, 2, "half")
    return address.number + size["width"]


job: Job = greet.enqueue(name="Ada", times=2)
same: Job = greet.using(priority=9, delay=60).enqueue("Ada")
text: str = greet("Ada")
ids: list[int] = [*app.enqueue_many(send.call(name="Ada", times=n) for n in range(3))]
deliver.enqueue(address=Address("Main"), size={"width": 3})

greet.enqueue(name=1)  # wrong
greet.enqueue()  # wrong
greet.enqueue(nme="Ada")  # wrong
greet.using(priority=9).enqueue(name="Ada", times="2")  # wrong
send.enqueue(name=1)  # wrong
send.call(times=2)  # wrong
send.call(name="Ada", more=1)  # wrong
deliver.enqueue(address="Main", size={"width": 3})  # wrong
deliver.enqueue(address=Address("Main"), size={"height": 3})  # wrong
number: int = greet("Ada")  # wrong
number = send("Ada")  # wrong

with app.batch(name="letters", on_complete=send, on_failure=greet.call("Ada")) as batch:
    ids = [*batch.add(send.call(name="Ada", times=n) for n in range(3))]
    batch.add(send.call(name=n) for n in range(3))  # wrong
app.batch(on_complete=print)  # wrong
left: int = batch.progress().unfinished


async def twins() -> int:
    """The async forms."""
    await greet.aenqueue(name="Ada")
    await send.aenqueue(name=1)  # wrong
    length: int = await deliver(Address("Main"), {"width": 3})
    async with app.running(concurrency=2):
        return length
