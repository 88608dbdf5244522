"""Tables of other people, all different; the code knows none of them by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dibs.adopted.mapping import Adoption, adoption

WORDS = dict(PENDING="queued", RUNNING="started", SUCCESSFUL="completed", FAILED="failed")


@dataclass(frozen=True)
class Schema:
    """A table: how it is made on each engine, what is said of it, and how a row gets there."""

    name: str
    postgres: str
    sqlite: str | None
    said: dict[str, Any]
    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]  # three rows that wait, in the order in which they are to be taken
    before: Sequence[str]  # a place that comes before them
    also: tuple[str, ...] = field(default=())  # output tables

    @property
    def adoption(self) -> Adoption:
        return adoption(**self.said)

    @property
    def table(self) -> str:
        return ".".join('"' + part.replace('"', '""') + '"' for part in self.adoption.table)


BARE = Schema(
    "bare",
    "create table things (id bigint primary key, status text not null)",
    "create table things (id integer primary key, status text not null)",
    dict(table="things", key="id", status="status", states=WORDS),
    ("id", "status"),
    [(1, "queued"), (2, "queued"), (3, "queued")],
    ("0",),
)
STICKERS = Schema(
    "stickers",
    """create table stickers (id bigserial primary key, status varchar(20) not null default 'queued', created_at timestamptz not null,
       started_at timestamptz, completed_at timestamptz, worker_id varchar(30), error varchar(200), attempts int not null default 0,
       priority int not null default 0, deleted_at timestamptz, title text)""",
    """create table stickers (id integer primary key, status varchar(20) not null default 'queued', created_at timestamp not null,
       started_at timestamp, completed_at timestamp, worker_id varchar(30), error varchar(200), attempts int not null default 0,
       priority int not null default 0, deleted_at timestamp, title text)""",
    dict(
        table="stickers",
        key="id",
        status="status",
        states=WORDS,
        order_by="created_at",
        started_at="started_at",
        finished_at="completed_at",
        worker="worker_id",
        error="error",
        attempts="attempts",
        priority="priority",
        where="deleted_at is null -- those that are left",
        output=("sticker_files", "sticker_id"),
    ),
    ("id", "status", "created_at", "priority", "title"),
    [
        (3, "queued", "2026-01-03 00:00:00", 9, "first"),
        (1, "queued", "2026-01-01 00:00:00", 1, "100% 'second'"),
        (2, "queued", "2026-01-02 00:00:00", 1, None),
    ],
    ("1000", "2000-01-01", "0"),
    ("create table sticker_files (sticker_id bigint not null, path text)",),
)
CAPITALS = Schema(
    "capitals, composite key, enum",
    """create schema "Shop"; create type "Shop"."State" as enum ('new', 'it''s "busy"', 'done', 'broken', 'again');
       create table "Shop"."OrderItem" ("Order No" int not null, "line%" text not null, "State" "Shop"."State" not null,
       primary key ("Order No", "line%"))""",
    None,
    dict(
        table="Shop.OrderItem",
        key=("Order No", "line%"),
        status="State",
        states=dict(PENDING="new", RUNNING='it\'s "busy"', SUCCESSFUL="done", FAILED="broken", RETRY="again"),
    ),
    ("Order No", "line%", "State"),
    [(1, "a", "new"), (1, "b:id", "new"), (2, "a", "new")],
    ("0", ""),
)
UUIDS = Schema(
    "uuid key, integer status, times without zone",
    """create table runs (run_id uuid primary key, state smallint not null, made timestamp not null, began timestamp, ended timestamp)""",
    """create table runs (run_id text primary key not null, state integer not null, made text not null, began text, ended text)""",
    dict(
        table="runs",
        key="run_id",
        status="state",
        states=dict(PENDING=0, RUNNING=1, SUCCESSFUL=2, FAILED=-1, CANCELLED=-2),
        order_by="made",
        started_at="began",
        finished_at="ended",
    ),
    ("run_id", "state", "made"),
    [
        ("00000000-0000-0000-0000-00000000000c", 0, "2026-01-01 00:00:00"),
        ("00000000-0000-0000-0000-00000000000b", 0, "2026-01-02 00:00:00"),
        ("00000000-0000-0000-0000-00000000000a", 0, "2026-01-03 00:00:00"),
    ],
    ("2000-01-01", "00000000-0000-0000-0000-000000000000"),
)
TEXTS = Schema(
    "text key, seconds since 1970, hostile names",
    """create table "sel;ect --" ("k" text primary key, "sta""tus" varchar(8) not null, ":place_0" bigint, "%(limit)s" double precision)""",
    """create table "sel;ect --" ("k" text primary key not null, "sta""tus" varchar(8) not null, ":place_0" bigint, "%(limit)s" double)""",
    dict(
        table="sel;ect --",
        key="k",
        status='sta"tus',
        states=dict(PENDING="w", RUNNING="r", SUCCESSFUL="o", FAILED="\\'; x"),
        started_at=":place_0",
        finished_at="%(limit)s",
    ),
    ("k", 'sta"tus'),
    [("'; drop table x; --", "w"), ('a"b\\c%s', "w"), ("ünï\u202e", "w")],
    ("",),
)
PARTITIONED = Schema(
    "partitioned, composite key",
    """create table events (day date not null, no int not null, status text not null, primary key (day, no)) partition by range (day);
       create table events_1 partition of events for values from ('2026-01-01') to ('2026-02-01');
       create table events_2 partition of events for values from ('2026-02-01') to ('2026-03-01')""",
    None,
    dict(table="events", key=("day", "no"), status="status", states=WORDS),
    ("day", "no", "status"),
    [("2026-01-05", 1, "queued"), ("2026-01-05", 2, "queued"), ("2026-02-05", 1, "queued")],
    ("2000-01-01", "0"),
)
PAIRS = Schema(
    "composite unique key, no primary key, without rowid",
    "create table pairs (a int not null, b text not null, note text, problem text, status text not null, unique (a, b))",
    "create table pairs (a int not null, b text not null, note text, problem text, status text not null, primary key (b, a)) without rowid",
    dict(table="pairs", key=("a", "b"), status="status", states=WORDS, order_by=("note",), error="problem"),
    ("a", "b", "note", "status"),
    [(2, "x", "1", "queued"), (1, "y", "2", "queued"), (1, "x", "3", "queued")],
    ("", "0", ""),
)
WIDE = Schema(
    "wide",
    f"create table wide (id int primary key, state char(1) not null, {', '.join(f'c{n} int' for n in range(130))}, data bytea)",
    f"create table wide (id int primary key not null, state char(1) not null, {', '.join(f'c{n} int' for n in range(130))}, data blob)",
    dict(table="wide", key="id", status="state", states=dict(PENDING="q", RUNNING="r", SUCCESSFUL="s", FAILED="f")),
    ("id", "state", "data", "c129"),
    [(1, "q", b"\x00\xff", 5), (2, "q", None, None), (3, "q", b"", 7)],
    ("0",),
)
EPOCHS = Schema(
    "varchar key, numeric priority with nulls, generated column",
    """create table epochs (code varchar(12) not null unique, status integer not null, weight numeric(6, 2), made bigint,
       twice int generated always as (status * 2) stored)""",
    """create table epochs (code varchar(12) not null unique, status integer not null, weight numeric(6, 2), made bigint)""",
    dict(
        table="epochs",
        key="code",
        status="status",
        states=dict(PENDING=10, RUNNING=20, SUCCESSFUL=30, FAILED=40),
        priority="weight",
        order_by="made",
    ),
    ("code", "status", "weight", "made"),
    [("b", 10, 2.5, 7), ("a", 10, 2.5, 9), ("c", 10, None, 1)],
    ("1000", "0", ""),
)

ITEMS = Schema(
    "capitals and a dot, composite key, a word for retries, times without zone",
    """create table "OrderItem" ("Order No" int not null, "Line" uuid not null, "State" varchar(10) not null, "made.at" timestamp,
       "Began" timestamp, "Ended" timestamp, "Who" text, primary key ("Order No", "Line"))""",
    """create table "OrderItem" ("Order No" int not null, "Line" text not null, "State" varchar(10) not null, "made.at" timestamp,
       "Began" timestamp, "Ended" timestamp, "Who" text, primary key ("Order No", "Line"))""",
    dict(
        table="OrderItem",
        key=("Order No", "Line"),
        status="State",
        states=dict(PENDING="New", RUNNING="Busy", SUCCESSFUL="Done", FAILED="Broken", RETRY="Again"),
        order_by="made.at",
        started_at="Began",
        finished_at="Ended",
        worker="Who",
    ),
    ("Order No", "Line", "State", "made.at"),
    [
        (1, "00000000-0000-0000-0000-00000000000b", "New", "2026-01-01 00:00:00"),
        (2, "00000000-0000-0000-0000-00000000000a", "New", "2026-01-02 00:00:00"),
        (1, "00000000-0000-0000-0000-00000000000a", "New", "2026-01-03 00:00:00"),
    ],
    ("2000-01-01", "0", "00000000-0000-0000-0000-000000000000"),
)

ALL = (BARE, STICKERS, CAPITALS, UUIDS, TEXTS, PARTITIONED, PAIRS, WIDE, EPOCHS, ITEMS)
