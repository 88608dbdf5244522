"""Code executions in a SQLite file, run by local workers: priority first, then the oldest; one worker for each.

    DIBS_URL=sqlite:///executions.db dibs worker executions:app --processes 2

The table:

    create table executions (id integer primary key, code text not null, priority integer not null default 0,
      created_at text not null default current_timestamp, status text not null default 'pending', worker_id text,
      started_at text, finished_at text, output text, error text)
"""

import subprocess
import sys

from dibs import Dibs

app = Dibs()
executions = app.adopt(
    "executions",
    key="id",
    status="status",
    states={"PENDING": "pending", "RUNNING": "running", "SUCCESSFUL": "done", "FAILED": "failed"},
    priority="priority",
    order_by="created_at",
    worker="worker_id",
    started_at="started_at",
    finished_at="finished_at",
    error="error",
    max_attempts=1,
)


@executions.process
def execute(row):
    """In a process of its own, with a time limit; its output is written together with 'done'."""
    done = subprocess.run([sys.executable, "-"], input=row["code"], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    with row.transaction() as connection:
        connection.execute("update executions set output = ? where id = ?", [done.stdout, row["id"]])
