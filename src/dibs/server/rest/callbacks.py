"""Callbacks: where a provider says what became of what it was handed. The address itself is the proof, once."""

from __future__ import annotations

from dibs.operations import submissions
from dibs.payload import encode
from dibs.server.problems import Refusal
from dibs.server.rest.route import Asked, Route, parsed
from dibs.server.wire import CallbackBody, CallbackShown
from dibs.tokens import CALLBACKS, called


async def call_back(asked: Asked) -> CallbackShown:
    """Keep what it says, for whoever asks after the job next; a late or repeated one changes nothing."""
    app = asked.server.app
    found = called(asked.request.path_params["token"], await app.signing_key(CALLBACKS))
    if found is None:
        raise Refusal(404, "no_such_callback", "Nobody was given this address.")
    said = parsed(await asked.request.body(), dict)  # all of it: of its shape the route knows only that it is an object
    document = encode(said, app.settings.max_payload, what="callback")
    return CallbackShown(accepted=await app.engine.arun(submissions.answer(*found, document)))


ROUTES = [
    Route(
        "POST",
        "/api/callbacks/{token}",
        None,
        call_back,
        "A provider says what became of a job",
        body=CallbackBody,
        returns=CallbackShown,
    ),
]
