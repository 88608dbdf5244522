"""Callbacks: where a provider says what became of what it was handed. The address itself is the proof, once."""

from __future__ import annotations

import secrets

from dibs.operations import submissions, tokens
from dibs.payload import decode, encode
from dibs.server.problems import Refusal
from dibs.server.rest.route import Asked, Route
from dibs.server.wire import CallbackBody, CallbackShown
from dibs.tokens import CALLBACKS, called


async def call_back(asked: Asked) -> CallbackShown:
    """Keep what it says, for whoever asks after the job next; a late or repeated one changes nothing."""
    engine = asked.server.app.engine
    key = bytes.fromhex(await engine.arun(tokens.secret(CALLBACKS, secrets.token_hex(32))))
    found = called(asked.request.path_params["token"], key)
    if found is None:
        raise Refusal(404, "no_such_callback", "Nobody was given this address.")
    document = encode(decode(await asked.request.body()), asked.server.app.settings.max_payload, what="callback")
    return CallbackShown(accepted=await engine.arun(submissions.answer(*found, document)))


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
