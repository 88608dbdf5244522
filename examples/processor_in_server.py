"""A processor for the rows of your own table, inside your server: five lines, and it starts and ends with the server.

    uvicorn processor_in_server:site     (any number of instances: each row is worked on by one of them)

The table: create table orders (id integer primary key, status text not null, total integer)
"""

from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from dibs import Dibs

app = Dibs()  # DIBS_URL or DATABASE_URL: the database that the table is in
orders = app.adopt(
    "orders",
    key="id",
    status="status",
    states={"PENDING": "queued", "RUNNING": "started", "SUCCESSFUL": "completed", "FAILED": "failed"},
)


@orders.process
async def bill(row):
    """Your own work on one row."""
    print(f"order {row['id']}: {row['total']}", flush=True)


@asynccontextmanager
async def lifespan(site):
    """The processor begins and ends with the server."""
    async with app.running():
        yield


async def home(request):
    """What waits and what runs."""
    return JSONResponse([{"queue": each.name, "waiting": each.waiting} for each in await app.aqueues()])


site = Starlette(routes=[Route("/", home)], lifespan=lifespan)
