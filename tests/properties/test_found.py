"""What the walks found, each as a small test."""

from dibs.job import NewJob
from dibs.operations import jobs, workers
from tests.actors import Actors


def test_a_held_key_is_never_told_as_new(actors: Actors) -> None:
    """SQLite told so by last_insert_rowid(), which is another's when nothing was inserted."""
    holder = actors.add(unique_key="k")
    actors.add()
    actors.worker().claim(10)
    [found] = actors.engine.run(jobs.add_keyed([NewJob("task", unique_key="k")]))
    assert (found.id, found.created, found.created_at) == (holder, False, None)


def test_enlisting_again_after_a_lost_answer_finds_oneself(actors: Actors) -> None:
    """PostgreSQL said that the number was taken."""
    enlist = workers.enlist(7, "me", lease=15, beat=3)
    assert [actors.engine.run(enlist), actors.engine.run(enlist)] == [True, True]
    assert not actors.engine.run(workers.enlist(7, "another", lease=15, beat=3))


def test_a_claim_in_doubt_is_told_from_what_is_held_by_more_than_the_token(actors: Actors) -> None:
    """On SQLite two jobs have the same token once in a million pairs: 200 held and 200 in doubt are 40,000 pairs."""
    actors.add_many(2)
    worker = actors.worker()
    (known,), (doubtful,) = worker.claim(), worker.claim()
    if not actors.engine.can.cursor:  # where tokens are counted in each row
        actors.sql(f"update dibs.jobs set token = {known.token} where id = {doubtful.id}")
    doubts = [(worker.id, worker.turns)]
    assert actors.engine.run(workers.hand_back([worker.id], doubts, [known.lease])) == 1
    assert (actors.state(known.id), actors.state(doubtful.id)) == ("RUNNING", "PENDING")
