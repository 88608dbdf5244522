"""`dibs adopt`: what a table lacks, carried out, and how it is."""

import json

import pytest

from dibs import Dibs
from tests.adopted.tables import Application
from tests.apps import on_postgres, on_sqlite
from tests.cli.commands import Shell

APP = """
from dibs import Dibs
app = Dibs({url!r})
stickers = app.adopt("stickers", key="id", status="status", order_by="created_at", started_at="started_at",
    finished_at="completed_at", worker="worker_id", error="error", attempts="attempts", priority="priority",
    states=dict(PENDING="queued", RUNNING="started", SUCCESSFUL="completed", FAILED="failed"),
    where="title <> '100%'", output=("sticker_files", "sticker_id"), stuck_after=60)

@stickers.process
def render(row):
    pass
"""


@pytest.fixture
def name(shell: Shell, url: str) -> str:
    return shell.write(APP.format(url=url)) + ":app"


@pytest.fixture
def application(app: Dibs) -> Application:
    application = Application(app.engine)
    application.execute("create table stickers (id integer primary key, created_at timestamp not null, title text)")
    application.execute("create table sticker_files (sticker_id integer not null)")
    application.execute("insert into stickers values (1, '2026-01-01 00:00:00', 'old')")
    return application


def test_a_status_that_is_added_asks_what_old_rows_get(shell: Shell, name: str, application: Application) -> None:
    result = shell.dibs("adopt", "plan", name)
    assert result.exit_code == 1
    assert "Which word do rows get that are there already (queued, started, completed, failed)?" in result.output
    result = shell.dibs("adopt", "plan", name, "--existing", "nonsense")
    assert (result.exit_code, "none of its words" in result.output) == (1, True)


def test_planned_applied_and_good(shell: Shell, name: str, application: Application) -> None:
    planned = shell.dibs("adopt", "plan", name, "--existing", "completed")
    assert planned.exit_code == 0
    statements = [line for line in planned.output.splitlines() if line and not line.startswith("--")]
    assert len(statements) == 10
    reasons = [line for line in planned.output.splitlines() if line.startswith("-- ")]
    assert len(reasons) == len(statements) + 1, "a reason for each"
    assert application.execute("select count(*) from stickers") == [(1,)], "nothing was changed"

    refused = shell.dibs("adopt", "apply", name, "--existing", "completed", input="n\n")
    assert refused.exit_code == 1
    assert "has no column 'status'" in shell.dibs("adopt", "check", name).output

    applied = shell.dibs("adopt", "apply", name, "--existing", "completed", input="y\n")
    assert applied.exit_code == 0, applied.output
    assert application.execute("select status, attempts, priority from stickers") == [("completed", 0, 0)]
    assert "nothing is missing" in shell.dibs("adopt", "plan", name).output
    assert "nothing to do" in shell.dibs("adopt", "apply", name).output
    good = shell.dibs("adopt", "check", name)
    assert (good.exit_code, good.output.splitlines()[0]) == (0, "stickers: good")
    assert "how a claim finds its rows" in good.output


TWO = """
from dibs import Dibs
app = Dibs({url!r})
app.adopt("stickers", key="id", status="status",
    states=dict(PENDING="queued", RUNNING="started", SUCCESSFUL="completed", FAILED="failed"))
app.adopt("prints", key="id", status="state", states=dict(PENDING=0, RUNNING=1, SUCCESSFUL=2, FAILED=3))
"""


def test_each_table_has_words_of_its_own(shell: Shell, url: str, application: Application) -> None:
    application.execute("create table prints (id integer primary key)")
    name = shell.write(TWO.format(url=url)) + ":app"
    assert shell.dibs("adopt", "plan", name, "--existing", "completed").exit_code == 1
    for table, word in (("stickers", "completed"), ("prints", "2")):
        applied = shell.dibs("adopt", "apply", name, "--table", table, "--existing", word, "--yes")
        assert applied.exit_code == 0, applied.output
    for command in ("plan", "check"):
        both = shell.dibs("adopt", command, name, "--table", "prints", "--table", "stickers").output
        assert ("stickers: " in both, "prints: " in both) == (True, True)
        one = shell.dibs("adopt", command, name, "--table", "prints").output
        assert ("stickers: " in one, "prints: " in one) == (False, True)
    nobody = shell.dibs("adopt", "plan", name, "--table", "nothing")
    assert (nobody.exit_code, "it adopts stickers, prints" in nobody.output) == (1, True)
    if application.engine.name == "postgres":
        planned = shell.dibs("adopt", "plan", name, "--cron")
        assert (planned.exit_code, planned.output.count("not what others left")) == (0, 2)


def test_what_is_wrong_is_said(shell: Shell, name: str, application: Application) -> None:
    shell.dibs("adopt", "apply", name, "--existing", "completed", "--yes")
    add = "insert into stickers (id, created_at, title, status, started_at) values (%s, '2026-01-01', 'x', %s, %s)"
    application.execute(add, [2, "strange", None])
    application.execute(add, [3, "started", "2026-01-01 00:00:00"])
    for index in ("sticker_files_dibs_once", "stickers_dibs_waiting"):
        application.execute(f"drop index {index}")
    application.execute("insert into sticker_files values (1), (1)")
    result = shell.dibs("adopt", "check", name, "--json")
    assert result.exit_code == 1
    (said,) = json.loads(result.output)
    problems = "\n".join(each["problem"] for each in said["findings"])
    assert "1 rows have the status 'strange', which is none of its words" in problems
    assert "1 rows say that they run, and nobody alive works on them" in problems
    assert "1 rows have more than one output" in problems
    assert "the database itself refuses a second output for a row" in problems
    assert "a claim reads the next rows, however many are done" in problems
    query = next(each["detail"] for each in said["findings"] if "more than one output" in each["problem"])
    assert application.execute(query) == [(1, 2)], "the query is there to be run"


def test_a_condition_that_nobody_understands(shell: Shell, url: str, application: Application) -> None:
    application.execute("alter table stickers add column status text")
    name = shell.write(
        f"""
from dibs import Dibs
app = Dibs({url!r})
app.adopt("stickers", key="id", status="status", where="no such ((",
    states=dict(PENDING="queued", RUNNING="started", SUCCESSFUL="completed", FAILED="failed"))
"""
    )
    for group, command, code in (("adopt", "plan", 1), ("adopt", "check", 1), ("queues", "list", 0)):
        result = shell.dibs(group, command, f"{name}:app")
        assert (result.exit_code, "does not understand what is said of it" in result.output) == (code, True)
        assert "no such ((" in result.output


def test_a_table_with_rows_can_be_paused(shell: Shell, url: str, name: str, application: Application) -> None:
    shell.dibs("adopt", "apply", name, "--existing", "queued", "--yes")
    result = shell.dibs("queues", "pause", name, "stickers")
    assert (result.exit_code, result.output.strip()) == (0, "paused stickers")


def test_rows_are_listed_like_jobs(shell: Shell, name: str, application: Application, app: Dibs) -> None:
    """Those that wait are counted with their queue; those that have run are jobs, whose payload is their key."""
    shell.dibs("adopt", "apply", name, "--existing", "queued", "--yes")
    application.execute("insert into stickers (id, created_at, title, status) values (2, '2026-01-02', 'x', 'queued')")
    (queue,) = json.loads(shell.dibs("queues", "list", name, "--json").output)
    assert (queue["name"], queue["waiting"]) == ("stickers", 2)
    assert shell.dibs("jobs", "list", name).output == "no such job\n"
    shell.dibs("drain", name, "--limit", "1")
    assert "stickers" in shell.dibs("queues", "list", name).output
    (listed,) = json.loads(shell.dibs("jobs", "list", name, "--queue", "stickers", "--json").output)["jobs"]
    assert (listed["type"], listed["queue"], listed["state"]) == ("stickers", "stickers", "SUCCESSFUL")
    assert listed["payload"] == {"table": "stickers", "key": ["1" if app.engine.name == "postgres" else 1]}


def test_an_app_that_adopts_nothing_says_so(shell: Shell, url: str) -> None:
    name = shell.write(f"from dibs import Dibs\napp = Dibs({url!r})\n") + ":app"
    result = shell.dibs("adopt", "check", name)
    assert (result.exit_code, "adopts no table" in result.output) == (1, True)


@on_sqlite
def test_what_only_a_server_can_do(shell: Shell, name: str, application: Application) -> None:
    result = shell.dibs("adopt", "plan", name, "--existing", "completed", "--wake")
    assert (result.exit_code, "for PostgreSQL" in result.output) == (2, True)


@on_postgres
def test_an_index_that_failed_halfway_is_made_anew(shell: Shell, name: str, application: Application) -> None:
    application.execute("insert into sticker_files values (1), (1)")
    failed = shell.dibs("adopt", "apply", name, "--existing", "completed", "--yes")
    assert failed.exit_code == 1
    application.execute("delete from sticker_files")
    planned = shell.dibs("adopt", "plan", name)
    assert 'drop index concurrently if exists "public"."sticker_files_dibs_once"' in planned.output
    assert shell.dibs("adopt", "apply", name, "--yes").exit_code == 0
    assert shell.dibs("adopt", "check", name).exit_code == 0


@on_postgres
def test_triggers_and_a_function_for_cron(shell: Shell, name: str, application: Application) -> None:
    assert "First add the columns" in shell.dibs("adopt", "plan", name, "--existing", "completed", "--cron").output
    shell.dibs("adopt", "apply", name, "--existing", "completed", "--yes")
    applied = shell.dibs("adopt", "apply", name, "--wake", "--cron", "--yes")
    assert applied.exit_code == 0, applied.output
    with application.connection() as raw:
        raw.autocommit = True
        raw.execute("listen dibs_wake")
        raw.execute("insert into stickers (id, created_at, title) values (5, now(), 'new')")
        (heard,) = raw.notifies(timeout=30, stop_after=1)
        assert json.loads(heard.payload)["queue"] == "stickers"
        raw.execute("update stickers set status = 'started', started_at = now() - interval '2 minutes' where id = 5")
        raw.execute(
            "insert into stickers (id, created_at, title, status, started_at) values (6, now(), 'b', 'started', now())"
        )
        raw.execute(
            "insert into stickers (id, created_at, title, status, started_at) values (7, now(), 'c', 'started', null)"
        )
        raw.execute("insert into sticker_files values (7)")
        (left_behind,) = raw.execute('select dibs."recover stickers"()').fetchone()
        assert left_behind == 1
        states = dict(raw.execute("select id, status from stickers").fetchall())
    assert states == {1: "completed", 5: "queued", 6: "started", 7: "started"}, "of 7 nobody knows since when"


@on_postgres
@pytest.mark.parametrize(
    "said, other, stale",
    [
        ("stuck_after=60", "stuck_after=90", {"recover stickers"}),
        ("title <> '100%'", "title <> '90%'", {"recover stickers"}),
        ('PENDING="queued"', 'PENDING="waiting"', {"recover stickers", "wake stickers"}),
    ],
)
def test_a_function_for_something_else_is_said(
    shell: Shell, url: str, name: str, application: Application, said: str, other: str, stale: set[str]
) -> None:
    shell.dibs("adopt", "apply", name, "--existing", "completed", "--yes")
    shell.dibs("adopt", "apply", name, "--wake", "--cron", "--yes")
    assert shell.dibs("adopt", "check", name).exit_code == 0
    changed = shell.write(APP.format(url=url).replace(said, other)) + ":app"
    shell.dibs("adopt", "apply", changed, "--yes")
    checked = shell.dibs("adopt", "check", changed, "--json")
    assert checked.exit_code == 1
    found = [each["problem"] for each in json.loads(checked.output)[0]["findings"]]
    assert {each.split("'")[1] for each in found} == stale
    shell.dibs("adopt", "apply", changed, "--wake", "--cron", "--yes")
    assert shell.dibs("adopt", "check", changed).exit_code == 0
