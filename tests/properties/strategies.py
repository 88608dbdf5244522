"""How steps are drawn: from fixed strategies, some more often than others.

Times are such that only the time that a walk lets pass decides: no sum of PASSING comes within half a minute below a
delay, a period or a lease.
"""

from __future__ import annotations

from hypothesis import strategies as st

from dibs.job import JobState
from dibs.operations.jobs import Filter
from tests.properties.lab import Fate
from tests.properties.steps.adding import Add, AddMany, New
from tests.properties.steps.happening import Age, AtOnce, Crash, Newcomer, PassTime, Prune, Pulse, Vanish
from tests.properties.steps.living import Beats, HandBack, Leave, NoteSilent, Recover, Witness
from tests.properties.steps.looking import PeopleLook
from tests.properties.steps.owning import Again, Ending, Kind, Progress, Resend, Turn
from tests.properties.steps.people import Cancel, Pause, Retry
from tests.properties.steps.step import PRIORITIES, QUEUES, TYPES, Plan, Step

PASSING = (170, 530, 1700)  # seconds
DAYS = (3, 10)


def some(**weights: int) -> st.SearchStrategy[str]:
    """One of these words, some more often than others."""
    return st.sampled_from([word for word, weight in weights.items() for _ in range(weight)])


numbers = st.integers(0, 7)
fates = some(ANSWERED=16, LOST=2, CUT=1, HALF=1).map(Fate.__getitem__)
new_jobs = st.builds(
    New,
    queue=st.sampled_from(QUEUES),
    type=st.sampled_from(TYPES),
    priority=st.sampled_from(PRIORITIES),
    max_attempts=st.sampled_from((3, 1, 2)),
    delay=st.sampled_from((0, 0, 0, 0, -1, 60, 600)),
    key=st.sampled_from((None, None, None, "a", "b")),
    unique_for=st.sampled_from((None, None, 300)),
)
endings = st.builds(
    Ending,
    kind=some(OK=3, ERROR=3, FATAL=1, SNOOZE=1, RELEASE=1).map(Kind.__getitem__),
    delay=st.sampled_from((0, 0, 0, 60, 600)),
    days=st.sampled_from((7, 1)),
)
filters = st.builds(
    Filter,
    state=st.sampled_from((None, *JobState)),
    type=st.sampled_from((None, None, *TYPES)),
    queue=st.sampled_from((None, None, *QUEUES)),
)
wanting = {
    "who": numbers,
    "limit": st.sampled_from((3, 1, 2, 10)),
    "last": st.sampled_from((True, True, True, False)),
    "reverse": st.booleans(),
    "suspects": st.sampled_from((1, 1, 1, 0)),
    "knows": st.sampled_from((TYPES, TYPES, TYPES, TYPES[:1], TYPES[1:])),
    "cursor": st.sampled_from((False, False, False, True)),
}
claims = st.builds(Turn, **wanting)
turns = st.builds(
    Turn,
    endings=st.lists(endings, min_size=1, max_size=4).map(tuple),
    **{**wanting, "limit": st.sampled_from((3, 1, 2, 0))},
)
many = st.builds(AddMany, news=st.lists(new_jobs, min_size=1, max_size=4).map(tuple))

plans: dict[str, st.SearchStrategy[Plan]] = {
    "claim": claims,
    "turn": turns,
    "add": st.builds(Add, new=new_jobs),
    "again": st.builds(Again, lease=numbers, ending=endings),
    "cancel": st.builds(Cancel, job=numbers),
    "retry": st.builds(Retry, job=numbers),
    "recover": st.builds(Recover, witness=st.sampled_from(Witness), who=numbers),
    "beat": st.builds(Beats, who=numbers, steady=st.sampled_from((True, True, True, False))),
    "hand_back": st.builds(HandBack, who=numbers),
    "leave": st.builds(Leave, who=numbers),
    "pause": st.builds(Pause, queue=st.sampled_from(QUEUES), paused=st.sampled_from((False, False, True))),
}
racers = some(
    turn=6, claim=4, recover=2, cancel=2, retry=1, add=1, again=1, beat=1, hand_back=1, leave=1, pause=1
).flatmap(plans.__getitem__)

kinds: dict[str, st.SearchStrategy[Step]] = {
    **plans,
    "at_once": st.builds(AtOnce, left=racers, right=racers, linger=st.sampled_from((False, True))),
    "add_many": many,
    "resend": st.builds(Resend, who=numbers),
    "progress": st.builds(Progress, lease=numbers, percent=st.integers(0, 100)),
    "pulse": st.builds(Pulse, who=numbers, steady=st.sampled_from((True, True, True, False))),
    "newcomer": st.builds(Newcomer, seasoned=st.booleans()),
    "crash": st.builds(Crash, who=numbers),
    "vanish": st.builds(Vanish, who=numbers),
    "note_silent": st.builds(NoteSilent, leases=st.integers(1, 2)),
    "cancel_some": st.builds(Cancel, job=numbers, filter=filters),
    "retry_some": st.builds(Retry, job=numbers, filter=filters),
    "age": st.builds(Age, who=numbers, seconds=st.sampled_from((*PASSING, -2100))),
    "time": st.builds(PassTime, seconds=st.sampled_from(PASSING)),
    "prune": st.builds(Prune, days=st.sampled_from((0, *DAYS))),
    "look": st.builds(PeopleLook, job=numbers, wanted=filters),
}
steps = some(
    turn=22,
    claim=10,
    at_once=12,
    add=4,
    add_many=4,
    again=4,
    resend=5,
    progress=2,
    pulse=9,
    recover=5,
    crash=3,
    leave=2,
    newcomer=3,
    note_silent=2,
    vanish=1,
    cancel=3,
    cancel_some=1,
    retry=3,
    retry_some=2,
    pause=2,
    time=8,
    age=5,
    prune=2,
    look=2,
).flatmap(kinds.__getitem__)
