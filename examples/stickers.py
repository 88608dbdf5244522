"""A product that draws stickers: its own table, a refund when a sticker fails for good, any number of replicas.

    dibs worker stickers:app                (start it as often as you like, on as many machines)

The log says who has what: "Worker started: ...", "Job stickers 7 claimed by ...", "Job stickers 7 completed in 45.2s".
Tables (PostgreSQL; on SQLite `integer` and `text` will do):

    create table users (id bigint primary key, credits integer not null);
    create table stickers (id uuid primary key, user_id bigint not null, prompt text not null,
      status text not null default 'queued', created_at timestamptz not null default now(), started_at timestamptz,
      completed_at timestamptz, worker_id text, error text, attempts integer not null default 0);
    create table sticker_files (sticker_id uuid not null, path text not null);

`dibs adopt apply stickers:app` adds the indexes.
"""

from dibs import Dibs, Permanent

app = Dibs()
MARK = "?" if app.url.startswith("sqlite") else "%s"  # how the driver writes a value


def refund(job, connection):
    """In the transaction that says 'failed': once, whatever dies around it."""
    (sticker,) = job.payload["key"]
    find = f"select user_id from stickers where id = {MARK}"
    (user,) = connection.execute(find, [sticker]).fetchone()
    connection.execute(f"update users set credits = credits + 1 where id = {MARK}", [user])


stickers = app.adopt(
    "stickers",
    key="id",
    status="status",
    states={"PENDING": "queued", "RUNNING": "started", "SUCCESSFUL": "completed", "FAILED": "failed"},
    order_by="created_at",
    started_at="started_at",
    finished_at="completed_at",
    worker="worker_id",
    error="error",
    attempts="attempts",
    output=("sticker_files", "sticker_id"),
    stuck_after=300,
    max_attempts=3,
    retry=0.1,
    on_failure=refund,
)


@stickers.process
def draw(row):
    """The file and 'completed' commit together; a row that has a file already is not drawn again."""
    if not row["prompt"].strip():
        raise Permanent("nothing was asked for")
    path = f"/stickers/{row['id']}.png"
    with row.transaction() as connection:
        insert = f"insert into sticker_files (sticker_id, path) values ({MARK}, {MARK})"
        connection.execute(insert, [row["id"], path])
