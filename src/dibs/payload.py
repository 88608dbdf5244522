"""Between a function's signature and JSON: typed arguments in, checked bytes out; and what JSON may not contain.

Both engines must store the same: no NaN, no NUL, no lone surrogates, no keys but texts, bounded depth and size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from copy import copy
from math import isfinite
from typing import Any, get_type_hints

import msgspec

from dibs.errors import InvalidPayload, PayloadTooLarge

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 100
TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels. Flatten it or store it elsewhere."

_encode = msgspec.json.Encoder(order=None).encode
_decode = msgspec.json.Decoder().decode


def _from_model(value: Any) -> Any:
    """A pydantic model as plain data; told by what it can do, so that pydantic is not imported."""
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"objects of the class {type(value).__name__} are not JSON")


def encode(
    value: Any, limit: int = MAX_BYTES, *, what: str = "payload", plainly: Callable[[Any], Any] = _from_model
) -> bytes:
    """Plain JSON data as bytes, or an InvalidPayload that names the place. `plainly` makes it of other objects.

    >>> encode({"size": 3})
    b'{"size":3}'
    """
    try:
        if not _is_plain(value, 0):
            value = msgspec.to_builtins(value, str_keys=False, enc_hook=plainly)
            _check(value, what, 0)
        document = _encode(value)
    except RecursionError as error:
        raise InvalidPayload(f"{what} {TOO_DEEP}") from error
    except (TypeError, ValueError, UnicodeError) as error:
        if isinstance(error, InvalidPayload):
            raise
        raise InvalidPayload(f"The {what} cannot be written as JSON: {error}") from error
    if len(document) > limit:
        raise PayloadTooLarge(what, len(document), limit)
    return document


def _from_argument(value: Any) -> Any:
    """Likewise; refused where another model would be made of it than was given."""
    if not hasattr(type(value), "model_validate"):
        return _from_model(value)
    data = value.model_dump(mode="json", by_alias=True, round_trip=True)
    try:
        again = type(value).model_validate(data)
    except ValueError:
        return data  # the signature says what is wrong with it, if it asks for such a model
    before, after = _all_it_holds(value), _all_it_holds(again)
    if before != after:
        name = type(value).__name__
        if isinstance(before, dict):
            name += "." + next(key for key in before if before[key] != after.get(key))
        raise InvalidPayload(
            f"{name} does not come back from JSON as it was. An alias has to be the same both ways. Of a secret only "
            "asterisks come back: pass where it is kept, or give it a serializer that shows it."
        )
    return data


def _all_it_holds(model: Any) -> Any:
    """What can be compared of a model, secrets too."""
    fields = model.model_dump(by_alias=True, round_trip=True)
    return msgspec.to_builtins(fields, str_keys=False, order="deterministic", enc_hook=_revealed)


def _revealed(value: Any) -> Any:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else None


def _to_model(kind: type, data: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(data)  # its errors are ValueErrors, to which msgspec adds the place
    raise TypeError(f"a {kind.__name__} cannot be made of JSON")


def decode(document: bytes | str | None) -> Any:
    """The stored JSON as plain data; absent is None. Of what others have stored and nobody can read, why."""
    try:
        return None if document is None else _decode(document)
    except RecursionError:
        return "(it is nested deeper than can be read)"
    except msgspec.ValidationError:
        return "(it has a number that is too long to be read)"
    except ValueError:
        return "(it is not JSON)"


def _is_plain(value: Any, depth: int) -> bool:
    """Whether it is surely what JSON may contain. Most is, and then nobody has to name the place of each part of it."""
    kind = type(value)
    if kind is str:
        return "\x00" not in value and (value.isascii() or value.isprintable())  # a lone surrogate is not printable
    if kind is int:
        return -(2**63) <= value < 2**64  # type: ignore[no-any-return]  # two comparisons
    if kind is dict:
        return depth < MAX_DEPTH and all(
            [type(key) is str and _is_plain(key, depth) and _is_plain(item, depth + 1) for key, item in value.items()]
        )
    if kind is list:
        return depth < MAX_DEPTH and all([_is_plain(item, depth + 1) for item in value])
    return kind is bool or value is None or (kind is float and isfinite(value))


def _check(value: Any, place: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidPayload(f"{place[:100]}... {TOO_DEEP}")
    match value:
        case str():
            _check_text(value, place)
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise InvalidPayload(f"{place} is {value}, which JSON does not have. Use null or a text.")
        case int():
            if not -(2**63) <= value < 2**64:
                raise InvalidPayload(f"{place} is a whole number over 64 bits. Use a text.")
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidPayload(f"{place} has the key {key!r}: keys must be texts in JSON.")
                _check_text(key, f"a key of {place}")
                _check(item, f"{place}.{key}", depth + 1)
        case list() | tuple():
            for number, item in enumerate(value):
                _check(item, f"{place}[{number}]", depth + 1)
        case _:
            pass


def _check_text(text: str, place: str) -> None:
    if "\x00" in text:
        raise InvalidPayload(f"{place} contains the character \\u0000, which databases cannot store. Remove it.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidPayload(f"{place} contains half of a surrogate pair, which is no valid text.") from None


class Signature:
    """The arguments of a task, as a type that JSON is checked against."""

    def __init__(self, function: Callable[..., Any], *, without: Collection[str] = ()) -> None:
        self.function = function
        hints = get_type_hints(function, include_extras=True)
        fields: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name in without:
                continue
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidPayload(
                    f"{function.__qualname__}: a task takes arguments by name, so {parameter} is not possible."
                )
            kind = hints.get(parameter.name, Any)
            required = parameter.default is parameter.empty
            fields.append((parameter.name, kind) if required else (parameter.name, kind, _default(parameter.default)))
        self.names = frozenset(field[0] for field in fields)
        self.struct = msgspec.defstruct(
            function.__name__, fields, kw_only=True, forbid_unknown_fields=True, omit_defaults=False, frozen=True
        )
        self._load = msgspec.json.Decoder(self.struct, dec_hook=_to_model).decode

    def dump(self, arguments: dict[str, Any], limit: int = MAX_BYTES) -> bytes:
        """The payload of a call, checked: wrong, missing or extra arguments are named."""
        document = encode(arguments, limit, plainly=_from_argument)
        try:
            self._load(document)
        except msgspec.ValidationError as error:
            raise InvalidPayload(f"{self.function.__qualname__}: {error}") from error
        return document

    def load(self, document: bytes | str | None) -> dict[str, Any]:
        """The arguments of a stored payload, in the types of the signature."""
        try:
            arguments = self._load(document if document is not None else b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidPayload(f"{self.function.__qualname__}: {error}") from error
        except RecursionError as error:
            raise InvalidPayload(f"payload {TOO_DEEP}") from error
        return {name: getattr(arguments, name) for name in self.names}


def _default(value: Any) -> Any:
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=lambda: copy(value))
    return value
