"""Messages between a worker and the processes of its jobs: a length, then MessagePack. Nothing in them is executed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

LENGTH = struct.Struct(">I")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def framed(message: list[Any]) -> bytes:
    """One message, as it travels.

    >>> [*Frames().feed(framed(["progress", b"{}"]))]
    [['progress', b'{}']]
    """
    body = _encode(message)
    return LENGTH.pack(len(body)) + body


class Frames:
    """Bytes as they come, to messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """The messages that are complete now."""
        self._rest += data
        while len(self._rest) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._rest)[0]
            if len(self._rest) < end:
                return
            message = _decode(self._rest[LENGTH.size : end])
            del self._rest[:end]
            yield message
