"""Who is asking: reads the token of a request, and knows which ones there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from dibs.app import Dibs
from dibs.operations import tokens as stored
from dibs.server.guard import host_name, is_local
from dibs.server.problems import Refusal
from dibs.tokens import EVERYBODY, NOBODY, WATCH, Access, Known, recognized, watched

FRESH = 5.0  # seconds for which the list of tokens is good: so long does a revoked one go on working
LONGEST = 200  # characters of a token


class Gate:
    """Knows the tokens. `local`: while there is none, whoever reaches us by a local name may do everything."""

    def __init__(self, app: Dibs, *, local: bool = False) -> None:
        self.app, self.local = app, local
        self.known: list[Known] = []
        self.read_at = float("-inf")
        self.reading = asyncio.Lock()

    async def access(self, headers: Mapping[str, str], in_address: str | None = None) -> Access:
        """What the sender of a request may do, by its headers or by a token in its address."""
        if in_address is not None:
            if not in_address.startswith(WATCH):
                text = "Only a token to watch one job may stand in an address. Send others by Authorization: Bearer."
                raise Refusal(401, "not_authenticated", text, "token")
            return await self.bearer(in_address)
        authorization = headers.get("authorization")
        if authorization is None:
            anybody = self.local and is_local(host_name(headers.get("host", ""))) and not await self._tokens()
            return EVERYBODY if anybody else NOBODY
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer":
            raise Refusal(401, "not_authenticated", "Send the token as: Authorization: Bearer ...")
        return await self.bearer(token.strip())

    async def bearer(self, token: str) -> Access:
        """What this token is good for."""
        if len(token) > LONGEST or not token.isascii():
            return NOBODY
        if token.startswith(WATCH):
            job = watched(token, await self.app.signing_key(), time.time())
            return NOBODY if job is None else Access(job=job)
        return recognized(token, await self._tokens())

    async def _tokens(self) -> list[Known]:
        async with self.reading:  # one reads, and the others have waited for the same
            if time.monotonic() - self.read_at > FRESH:
                self.known = [row.known for row in await self.app.engine.arun(stored.list_tokens())]
                self.read_at = time.monotonic()
        return self.known
