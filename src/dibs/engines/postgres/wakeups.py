"""Waking on PostgreSQL: notifications as they come. They are hints: everything works when all of them are lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg

from dibs.engines.engine import Hint
from dibs.errors import ConnectionLost


async def hints(raw: Any) -> AsyncIterator[Hint]:
    """Each notification as a hint, until the connection breaks."""
    try:
        async for notification in raw.notifies():
            yield Hint(notification.channel, notification.payload)
    except (psycopg.Error, OSError) as error:
        raise ConnectionLost(f"The connection that listens broke: {error}") from error
