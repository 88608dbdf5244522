"""`dibs enqueue`, `jobs`, `queues` and `workers`: what people and scripts see, and what their mistakes come to."""

import json
import sys
from datetime import UTC, datetime

import click
import pytest

from dibs import Dibs, JobState, Task
from dibs.cli.render import confirmed
from tests.actors import Actors
from tests.apps import on_sqlite
from tests.cli.commands import Shell

APP = """
from dibs import Dibs
app = Dibs({url!r})

@app.task(name="greet", queue="mail")
def greet(name: str) -> str:
    return f"hello {{name}}"

@app.task(name="broken", max_attempts=1)
def broken(n: int = 0) -> None:
    raise ValueError("boom")
"""


@pytest.fixture
def name(shell: Shell, url: str) -> str:
    return shell.write(APP.format(url=url)) + ":app"


@pytest.fixture
def actors(app: Dibs) -> Actors:
    return Actors(app.engine)


def test_a_job_is_added_and_checked(shell: Shell, name: str, app: Dibs) -> None:
    result = shell.dibs("enqueue", name, "greet", "--payload", '{"name": "Ada"}', "--priority", "9")
    assert (result.exit_code, result.output) == (0, "added job 1\n")
    job = app.get(1)
    assert (job.payload, job.queue, job.priority) == ({"name": "Ada"}, "mail", 9)
    wrong = shell.dibs("enqueue", name, "greet", "--payload", '{"nome": "Ada"}')
    assert wrong.exit_code == 1
    assert "Error: greet: " in wrong.output


def test_without_an_app_it_is_taken_as_it_is(shell: Shell, url: str, app: Dibs) -> None:
    app.migrate()
    result = shell.dibs("enqueue", url, "anything", "--payload", "-", "--json", input='{"n": 1}')
    assert json.loads(result.output)["id"] == 1
    assert (app.get(1).type, app.get(1).payload) == ("anything", {"n": 1})


@on_sqlite
def test_a_payload_that_is_no_json_hides_no_job(shell: Shell, url: str, actors: Actors) -> None:
    actors.add(payload={})
    actors.sql("update dibs.jobs set payload = 'not json'")
    listed = json.loads(shell.dibs("jobs", "list", url, "--json").output)
    assert listed["jobs"][0]["payload"] == "(it is not JSON)"
    assert "payload       (it is not JSON)" in shell.dibs("jobs", "show", url, "1").output


def test_a_key_that_is_held_adds_nothing(shell: Shell, name: str) -> None:
    options = ("enqueue", name, "greet", "--payload", '{"name": "Ada"}', "--unique-key", "ada")
    assert shell.dibs(*options).output == "added job 1\n"
    assert shell.dibs(*options).output == "job 1 has this key already; nothing was added\n"


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["nope"], 1, "No task is named 'nope' in this app. Is the module that declares it imported?"),
        (["gret"], 1, "No task is named 'gret' in this app. Did you mean 'greet'?"),
        (["greet", "--payload", "{"], 2, "it is no JSON"),
        (["greet", "--payload", "[1]"], 2, "it has to be an object"),
        (["greet", "--payload", '{"self": 1}'], 1, "unknown field `self`"),
        (["greet", "--payload", "-"], 2, "it is no JSON: it is nested too deeply"),
        (["greet", "broken"], 2, "Which task? Name one"),
        (["greet", "--priority", "10"], 2, "10 is not in the range"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    shell: Shell, name: str, arguments: list[str], code: int, said: str
) -> None:
    result = shell.dibs("enqueue", name, *arguments, input='{"name":' + "[" * 200_000)
    assert result.exit_code == code
    assert said in result.output
    assert "Traceback" not in result.output


def test_jobs_are_listed_and_shown(shell: Shell, name: str, app: Dibs) -> None:
    for number in range(3):
        shell.dibs("enqueue", name, "broken", "--payload", f'{{"n": {number}}}')
    shell.dibs("enqueue", name, "greet", "--payload", '{"name": "Ada"}')
    shell.dibs("drain", name)
    listed = shell.dibs("jobs", "list", name, "--state", "failed", "--limit", "2").output
    assert [line.split()[:3] for line in listed.splitlines()[1:3]] == [
        ["3", "FAILED", "broken"],
        ["2", "FAILED", "broken"],
    ]
    assert listed.endswith("more: --cursor 2\n")
    page = json.loads(shell.real("jobs", "list", name, "--state", "FAILED", "--cursor", "2", "--json").stdout)
    assert ([job["id"] for job in page["jobs"]], page["cursor"]) == ([1], None)
    shown = shell.real("jobs", "show", name, "1").stdout  # with the traceback of the task
    assert "state         FAILED" in shown
    assert "ValueError: boom" in shown
    (failure,) = app.get(1).failures
    began, ended = [datetime.fromtimestamp(failure[name], UTC) for name in ("started_at", "finished_at")]
    when = f"{began.isoformat(' ', 'milliseconds')} to {ended.isoformat(' ', 'milliseconds')}"
    assert f"attempt 1 on {failure['worker']} after 0.0 s ({when}):" in shown
    assert json.loads(shell.dibs("jobs", "show", name, "4", "--json").output)["result"] == "hello Ada"
    assert "There is no job 99" in shell.dibs("jobs", "show", name, "99").output


def test_what_a_command_said_that_failed_is_shown(shell: Shell, url: str) -> None:
    app = Dibs(url)
    code = "import sys; print('said'); print('complained', file=sys.stderr); sys.exit(3)"
    app.commands(max_attempts=1).enqueue(arguments=[sys.executable, "-"], stdin=code)
    app.drain()
    app.close()
    shown = shell.real("jobs", "show", url, "1").stdout
    assert shown.endswith("exitCode: 3\nstdout: said\nstderr: complained\n")


def test_jobs_are_cancelled_and_retried(shell: Shell, name: str, app: Dibs) -> None:
    for _ in range(4):
        shell.dibs("enqueue", name, "broken")
    assert shell.dibs("jobs", "cancel", name, "1", "2").output == "cancelled 2 jobs\n"
    assert shell.dibs("jobs", "retry", name, "1").output == "retried 1 job\n"
    assert app.get(1).state == JobState.PENDING
    assert "Only FAILED and CANCELLED jobs can be retried" in shell.dibs("jobs", "retry", name, "3").output
    assert shell.dibs("jobs", "cancel", name).exit_code == 2
    assert shell.dibs("jobs", "cancel", name, "x").exit_code == 2
    asked = shell.dibs("jobs", "cancel", name, "--queue", "default", input="n\n")
    assert "cancel 3 jobs?" in asked.output
    assert asked.exit_code == 1
    done = shell.dibs("jobs", "cancel", name, "--queue", "default", "--yes")
    assert done.output.endswith("cancelled 3 jobs\n")
    again = shell.dibs("jobs", "retry", name, "--type", "broken", "--json", "--yes")
    assert json.loads(again.output) == {"retried": 4, "refused": 0}


def test_a_job_that_cannot_be_retried_keeps_no_other(shell: Shell, name: str, app: Dibs) -> None:
    task = app_task(app)
    free, held = task.enqueue().id, task.using(unique_key="k").enqueue().id
    shell.dibs("jobs", "cancel", name, str(free), str(held))
    holder = task.using(unique_key="k").enqueue().id
    result = shell.dibs("jobs", "retry", name, "99", str(holder), str(held), str(free))
    assert result.exit_code == 1
    for said in ("There is no job 99.", f"Job {holder} is PENDING.", f"job {holder} holds its unique key"):
        assert said in result.stderr
    assert result.stdout == "retried 1 job; 3 could not be\n"
    assert app.get(free).state is JobState.PENDING
    all_that_match = shell.dibs("jobs", "retry", name, "--type", "broken", "--yes")
    assert all_that_match.output.endswith("retried 0 jobs; 1 could not be: another job holds the unique key\n")
    again = shell.dibs("jobs", "retry", name, str(held), "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (1, {"retried": 0, "refused": 1})


def test_what_is_asked_is_exact_up_to_a_bound(
    shell: Shell, name: str, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = app_task(app)
    app.enqueue_many(task.call() for _ in range(4))
    shell.dibs("jobs", "cancel", name, "1", "2")
    monkeypatch.setattr("dibs.cli.jobs.COUNTED", 2)
    assert "cancel 2 jobs?" in shell.dibs("jobs", "cancel", name, "--type", "broken", input="n\n").output
    monkeypatch.setattr("dibs.cli.jobs.COUNTED", 1)
    assert "cancel over 1 job?" in shell.dibs("jobs", "cancel", name, "--type", "broken", input="n\n").output


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_for_machines_nothing_is_done_in_bulk_without_a_word(shell: Shell, name: str, app: Dibs, verb: str) -> None:
    """Where nobody can be asked, somebody has to have said so."""
    task = app_task(app)
    ids = app.enqueue_many(task.call() for _ in range(2))
    if verb == "retry":
        shell.dibs("jobs", "cancel", name, *map(str, ids))
    before = [app.get(job_id).state for job_id in ids]
    refused = shell.dibs("jobs", verb, name, "--type", "broken", "--json")
    assert refused.exit_code == 2
    assert f"{verb.capitalize()} 2 jobs? Nobody is here to be asked: say --yes." in refused.output
    assert [app.get(job_id).state for job_id in ids] == before
    done = shell.dibs("jobs", verb, name, "--type", "broken", "--json", "--yes")
    assert (done.exit_code, sum(json.loads(done.output).values())) == (0, 2)


def test_for_machines_with_somebody_to_ask_the_question_is_no_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: (print(prompt), "n")[1])
    with pytest.raises(click.Abort):
        confirmed("cancel 2 jobs?", yes=False, as_json=True)
    said = capsys.readouterr()
    assert (said.out, "cancel 2 jobs?" in said.err) == ("", True)


def test_a_job_that_is_not_there_cannot_be_cancelled(shell: Shell, name: str, app: Dibs) -> None:
    job_id = app_task(app).enqueue().id
    done = shell.dibs("jobs", "cancel", name, str(job_id), "99")
    assert done.exit_code == 1
    assert "cancelled 1 job; 1 could not be" in done.output
    assert "There is no job 99" in done.output
    again = shell.dibs("jobs", "cancel", name, str(job_id))
    assert (again.exit_code, again.output[:16]) == (0, "cancelled 0 jobs")


def app_task(app: Dibs) -> Task[..., None]:
    @app.task(name="broken")
    def broken(n: int = 0) -> None: ...

    return broken


def test_queues_are_counted_paused_and_resumed(shell: Shell, name: str, app: Dibs) -> None:
    assert shell.dibs("queues", "list", name).output == "no queue has any jobs\n"
    shell.dibs("enqueue", name, "greet", "--payload", '{"name": "Ada"}')
    shell.dibs("enqueue", name, "greet", "--payload", '{"name": "Ada"}', "--delay", "3600")
    assert shell.dibs("queues", "pause", name, "mail").output == "paused mail\n"
    (queue,) = json.loads(shell.dibs("queues", "list", name, "--json").output)
    assert (queue["name"], queue["waiting"], queue["later"], queue["paused"]) == ("mail", 1, 1, True)
    assert "paused" in shell.dibs("queues", "list", name).output
    assert json.loads(shell.dibs("drain", name, "--json").output)["claimed"] == 0
    assert shell.dibs("queues", "resume", name, "mail").output == "resumed mail\n"
    assert json.loads(shell.dibs("drain", name, "--json").output)["claimed"] == 1
    assert shell.dibs("queues", "pause", name, "a", "b").exit_code == 2


def test_a_name_may_have_a_colon(shell: Shell, name: str, app: Dibs) -> None:
    app.migrate()
    for arguments in (["mail:high"], [name, "mail:high"], [app.url, "mail:high"]):
        said = shell.dibs("queues", "pause", *arguments, DIBS_APP=name)
        assert said.output.startswith("paused mail:high\n")
    said = shell.dibs("queues", "pause", name)
    assert (said.exit_code, "Which queue? Name one." in said.output) == (2, True)


def test_a_queue_that_is_paused_before_it_has_jobs(shell: Shell, name: str, app: Dibs) -> None:
    shell.dibs("enqueue", name, "greet", "--payload", '{"name": "Ada"}')
    said = shell.dibs("queues", "pause", name, "mial").output
    assert said == "paused mial\nNothing waits in a queue of that name. There is: mail.\n"
    said = shell.dibs("queues", "resume", name, "mali").output
    assert said == "resumed mali\nNothing waits in a queue of that name. There is: mail, mial.\n"


def test_queues_are_paused_and_resumed_for_machines(shell: Shell, name: str, app: Dibs) -> None:
    shell.dibs("enqueue", name, "greet", "--payload", '{"name": "Ada"}')
    for verb, paused in (("pause", True), ("resume", False)):
        said = shell.dibs("queues", verb, name, "mail", "--json").output
        assert json.loads(said) == {"queue": "mail", "paused": paused}


@pytest.mark.parametrize("command", [["jobs", "list"], ["queues", "list"], ["workers"], ["enqueue", "noop"]])
def test_a_file_that_is_not_there_is_not_made_by_looking(shell: Shell, command: list[str]) -> None:
    place = 2 if command[0] != "workers" and command[1] == "list" else 1
    done = shell.dibs(*command[:place], "sqlite:///typo.db", *command[place:])
    assert done.exit_code == 1
    assert "There is no file at sqlite:///typo.db" in done.output
    assert not (shell.folder / "typo.db").exists()


def test_workers_are_listed(shell: Shell, name: str, actors: Actors) -> None:
    assert shell.dibs("workers", name).output == "no worker is running\n"
    worker = actors.worker()
    assert worker.name in shell.dibs("workers", name).output
    actors.age(worker, 3600)
    (listed,) = json.loads(shell.dibs("workers", name, "--json").output)
    assert (listed["name"], listed["alive"]) == (worker.name, False)
    assert "silent" in shell.dibs("workers", name).output


def test_what_is_past_its_time_is_forgotten(shell: Shell, name: str, app: Dibs, actors: Actors) -> None:
    shell.dibs("enqueue", name, "broken")
    shell.dibs("drain", name)
    old = "finished_at - 100 * 86400000000" if app.engine.name == "sqlite" else "finished_at - interval '100 days'"
    actors.sql(f"update dibs.dead set finished_at = {old}")
    assert json.loads(shell.dibs("db", "prune", name, "--json").output) == {"freed": 0, "forgotten": 1}
    assert actors.sql("select count(*) from dibs.dead") == [(0,)]
    assert shell.dibs("db", "prune", name).output == "done\n"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--queues", "mail=3,media"], "has no weight"),
        (["--queues", ","], "names no queue"),
        (["--queues", "mail=0"], "queues: must be between"),
        (["--concurrency", "0"], "0 is not in the range"),
        (["--processes", "0"], "0 is not in the range"),
    ],
)
def test_a_worker_with_wrong_options_does_not_begin(shell: Shell, name: str, arguments: list[str], said: str) -> None:
    result = shell.dibs("worker", name, *arguments)
    assert result.exit_code in (1, 2)
    assert said in result.output


def test_a_worker_without_tasks_does_not_begin(shell: Shell, url: str) -> None:
    result = shell.dibs("worker", url)
    assert result.exit_code == 1
    assert "declares no task" in result.output
