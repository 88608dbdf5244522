"""2,000 texts for a paid provider: three invocations hand them over at once, and a summary says what it cost.

    python summaries.py                     (dibs.db in this folder, or DIBS_URL=postgresql://...)

The provider here is a stand-in that runs beside it, keeps a till, and forgets to answer every hundredth time.
Yours has an address of its own; `submit`, `reconcile` and `poll` are the three requests to write.
"""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

from dibs import Dibs, Done, Waiting

ITEMS, INVOCATIONS = int(os.environ.get("ITEMS", "2000")), 3
PROVIDER = os.environ.get("PROVIDER", "http://127.0.0.1:8099")

app = Dibs()


def ask(path, body=None):
    """One request to the provider."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(PROVIDER + path, data), timeout=10) as answer:  # noqa: S310  # its address is our own setting
        return json.load(answer)


@app.provider_task(queue="llm", poll_every=1, give_up_after=3600, max_attempts=5, retry=1, timeout=10)
class Summarise:
    """A text, summarised by somebody who charges for it."""

    def submit(self, text: str, key: str) -> str:
        """The key makes it one submission for the provider, too, if it honours keys; this one does not."""
        return ask("/tasks", {"text": text, "key": key})["id"]

    def reconcile(self, text: str, key: str) -> str | None:
        """A submit did not return: does the provider know the key?"""
        return ask(f"/tasks?key={key}")["id"]

    def poll(self, task_id: str):
        """What became of it, and what it cost."""
        answer = ask(f"/tasks?id={task_id}")
        return Done(answer["summary"], usage=answer["usage"]) if answer["ready"] else Waiting()


@app.task(queue="llm")
def bill(batch_id: int) -> dict:
    """When the last one is done: the summary. Its costs are in the table of submissions."""
    progress = app.get_batch(batch_id).progress()
    return {"items": progress.total, "done": progress.successful, "failed": progress.failed}


class Provider(BaseHTTPRequestHandler):
    """A stand-in for somebody who charges: accepts everything, charges for each acceptance, honours no key."""

    protocol_version = "HTTP/1.1"
    tasks, keys, lock = {}, {}, threading.Lock()

    def do_POST(self):
        """Accept, and charge."""
        said = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.lock:
            name = f"task-{len(self.tasks) + 1}"
            self.tasks[name] = {"ready": True, "summary": said["text"][:20], "usage": {"tokens": len(said["text"])}}
            self.keys[said["key"]] = name
        if name.endswith("00"):  # accepted, and the answer is lost
            self.close_connection = True
            return
        self._answer({"id": name})

    def do_GET(self):
        """What is known of a key, of a task, or of all of them."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if "key" in asked:
            return self._answer({"id": self.keys.get(asked["key"])})
        if "id" in asked:
            return self._answer(self.tasks[asked["id"]])
        tokens = sum(task["usage"]["tokens"] for task in self.tasks.values())
        return self._answer({"accepted": len(self.tasks), "tokens": tokens})

    def log_message(self, *_):
        """In silence."""

    def _answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main():
    """All of it: the items, the invocations, the bill."""
    app.migrate()
    with app.batch(name="summaries", on_complete=bill) as batch:
        batch.add(Summarise.call(text=f"The text of item {n}, which is long.") for n in range(ITEMS))
    while batch.progress().finished_at is None:  # as a scheduler would: several at once, again and again
        drain = [sys.executable, __file__, "drain"]
        for invocation in [subprocess.Popen(drain) for _ in range(INVOCATIONS)]:
            invocation.wait()
    app.drain()  # the bill
    progress = batch.progress()
    till = ask("/tasks")
    print(f"{progress.successful} of {progress.total} items are done, {progress.failed} failed")
    print(f"our books:        {batch.usage()['tokens']:,.0f} tokens")
    print(f"the provider's:   {till['tokens']:,} tokens for {till['accepted']} submissions")
    print("each was paid for once" if till["accepted"] == progress.total else "SOMETHING WAS PAID FOR TWICE")


if __name__ == "__main__":
    if sys.argv[1:] == ["drain"]:
        print(app.drain(limit=1000, concurrency=25), flush=True)
    else:
        server = ThreadingHTTPServer(("127.0.0.1", urlsplit(PROVIDER).port), Provider)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        main()
