"""Payloads: plain JSON that every engine stores alike, or an InvalidPayload that names the place; and nothing else."""

import enum
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from dibs.errors import InvalidPayload, PayloadTooLarge
from dibs.payload import MAX_BYTES, MAX_DEPTH, Signature, decode, encode


class Colour(enum.Enum):
    RED = "red"


class Strange(enum.Enum):
    BIG = 2**70
    NUL = "a\x00"


@dataclass
class Point:
    x: Any
    y: Any = 0


class Silent:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def nested(depth: int, make: Any = lambda inner: [inner]) -> Any:
    value = None
    for _ in range(depth):
        value = make(value)
    return value


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


PLAIN = [
    None, True, 0, -1, 2**63, 2**64 - 1, -(2**63), 1.5, "", "naïve ☃ 𝄞", "\x7f\u2028", 'quote " \\', "two\nlines",
    [], {}, [1, [2, [3]]], {"a": {"b": [None]}}, {"": 0},
    nested(MAX_DEPTH), nested(MAX_DEPTH, lambda inner: {"k": inner}),
]  # fmt: skip

BAD = {
    "NUL": "a\x00b",
    "NUL in a key": {"a\x00": 1},
    "NUL in an enum": Strange.NUL,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": {"a": [float("-inf")]},
    "NaN in a dataclass": Point(float("nan")),
    "a number as key": {1: 2},
    "None as key": {None: 1},
    "a boolean as key": {True: 1},
    "a float as key": {1.5: 1},
    "a tuple as key": {(1, 2): 3},
    "a key in a dataclass": Point({1: 2}),
    "one level too deep": nested(MAX_DEPTH + 1),
    "one level too deep, by keys": nested(MAX_DEPTH + 1, lambda inner: {"k": inner}),
    "a depth bomb": nested(100_000),
    "a depth bomb of keys": nested(100_000, lambda inner: {"k": inner}),
    "a circle": circle(),
    "a lone surrogate": "\ud800",
    "another lone surrogate": ["a\udfffb"],
    "a lone surrogate in a key": {"\udc00": 1},
    "over 64 bits": 2**64,
    "under 64 bits": -(2**63) - 1,
    "far over 64 bits": {"a": 10**5000},
    "an enum over 64 bits": Strange.BIG,
    "an object": object(),
    "an object that cannot be shown": {"a": Silent()},
    "a key that cannot be shown": {Silent(): 1},
    "a function": print,
    "a type": int,
    "a generator": (n for n in range(3)),
    "a complex number": 1j,
    "an ellipsis": ...,
    "raw bytes in disguise": msgspec.Raw(b"NaN\n"),
    "nothing in disguise": msgspec.UNSET,
}


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: str(value)[:20])
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    document = encode(value)
    assert decode(document) == value
    assert json.loads(document) == value
    assert b"\n" not in document


@pytest.mark.parametrize(
    "value, plain",
    [
        ((1, 2), [1, 2]),
        ({3}, [3]),
        (Colour.RED, "red"),
        ({Colour.RED: 1}, {"red": 1}),
        (Point(1), {"x": 1, "y": 0}),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), "2024-01-02T03:04:05Z"),
        (b"abc", "YWJj"),
    ],
)
def test_a_few_more_types_become_plain_data(value: Any, plain: Any) -> None:
    assert decode(encode(value)) == plain


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_json_is_refused(name: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode(BAD[name])
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_json_is_refused_anywhere_in_a_call(name: str) -> None:
    def task(a: Any) -> None: ...

    with pytest.raises(InvalidPayload):
        Signature(task).dump({"a": {"b": [BAD[name]]}})


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(InvalidPayload, match=r"payload\.user\.tags\[1\] contains the character"):
        encode({"user": {"tags": ["fine", "not\x00"]}})
    with pytest.raises(InvalidPayload, match="result is nan"):
        encode(float("nan"), what="result")


def test_a_payload_has_a_size() -> None:
    assert len(encode("x" * (MAX_BYTES - 2))) == MAX_BYTES
    with pytest.raises(PayloadTooLarge, match="max_payload") as caught:
        encode("x" * (MAX_BYTES - 1))
    assert (caught.value.size, caught.value.limit) == (MAX_BYTES + 1, MAX_BYTES)
    with pytest.raises(PayloadTooLarge):
        encode("é" * 6, limit=13)
    assert encode("é" * 6, limit=14)


def test_no_document_is_none() -> None:
    assert decode(None) is None
    assert decode(b"null") is None
    assert decode('{"a":1}') == {"a": 1}


@pytest.mark.parametrize(
    "document, said",
    [
        ("not json", "(it is not JSON)"),
        (b"\xff", "(it is not JSON)"),
        ('{"a":"\\ud800"}', "(it is not JSON)"),
        ('{"a":%s}' % ("9" * 5_000), "(it has a number that is too long to be read)"),
        ("[" * 5_000 + "]" * 5_000, "(it is nested deeper than can be read)"),
    ],
    ids=["no json", "no text", "half a pair", "a long number", "a depth bomb"],
)
def test_what_others_have_stored_keeps_nobody_from_looking(document: bytes | str, said: str) -> None:
    assert decode(document) == said


# Signatures


def send(to: str, copies: int = 1, *, tags: list[str] = [], at: datetime | None = None) -> None:  # noqa: B006 # a task may
    ...


def test_arguments_come_back_in_their_types() -> None:
    signature = Signature(send)
    moment = datetime(2024, 1, 2, tzinfo=UTC)
    document = signature.dump({"to": "ann", "at": moment})
    assert signature.load(document) == {"to": "ann", "copies": 1, "tags": [], "at": moment}


class Size(TypedDict):
    width: int
    height: NotRequired[int]


class Stamp(msgspec.Struct):
    at: datetime


class Order(pydantic.BaseModel):
    item: str
    count: int = 1


def every_kind(point: Point, size: Size, stamp: Stamp, order: Order, orders: list[Order] = []) -> None:  # noqa: B006 # a task may
    ...


KINDS = {
    "point": Point(1.5),
    "size": Size(width=3),
    "stamp": Stamp(datetime(2024, 1, 2, tzinfo=UTC)),
    "order": Order(item="tea"),
    "orders": [Order(item="milk", count=2)],
}


def test_arguments_may_be_dataclasses_typed_dicts_structs_and_models() -> None:
    signature = Signature(every_kind)
    assert signature.load(signature.dump(KINDS)) == KINDS
    assert b'"order":{"item":"tea","count":1}' in signature.dump(KINDS)


@pytest.mark.parametrize(
    "wrong, place",
    [
        ({"size": {"height": 1}}, "width"),
        ({"stamp": {"at": "noon"}}, r"\$.stamp.at"),
        ({"order": {"item": 1}}, r"\$.order"),
        ({"order": Point(1)}, r"\$.order"),
        ({"orders": [{"count": 1}]}, r"\$.orders\[0\]"),
        ({"orders": [{"item": "tea", "count": float("nan")}]}, "count is nan"),
        ({"point": object()}, "class object"),
    ],
)
def test_what_is_wrong_inside_them_is_named(wrong: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidPayload, match=place):
        Signature(every_kind).dump({**KINDS, **wrong})


def test_a_result_may_be_a_model() -> None:
    assert encode(Order(item="tea")) == b'{"item":"tea","count":1}'
    assert encode(Aliased(itemName="tea")) == b'{"itemName":"tea","labelSet":[],"raw":[],"inner":null,"shout":"TEA"}'


class Aliased(pydantic.BaseModel):
    """Its JSON has other names than it has, and it reads those alone."""

    item: str = pydantic.Field(alias="itemName")
    labels: set[str] = pydantic.Field(default=set(), validation_alias="labelSet", serialization_alias="labelSet")
    raw: pydantic.Json[list[int]] = pydantic.Field(default=[], validate_default=False)
    inner: "Aliased | None" = None

    @pydantic.computed_field  # type: ignore[prop-decorator] # as its own documentation has it
    @property
    def shout(self) -> str:
        return self.item.upper()


class TwoNames(pydantic.BaseModel):
    count: int = pydantic.Field(default=0, validation_alias="n", serialization_alias="m")


class TwoNamesNeeded(pydantic.BaseModel):
    count: int = pydantic.Field(validation_alias="n", serialization_alias="m")


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Around(pydantic.BaseModel):
    login: Login


class Shown(Login):
    @pydantic.field_serializer("password", when_used="json")
    def reveal(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


def take_models(aliased: Aliased, shown: Shown, anything: Any) -> None: ...


def test_a_model_comes_back_whatever_its_aliases() -> None:
    one = Aliased(itemName="tea", labelSet={"b", "a", "c"}, raw="[1]", inner=Aliased(itemName="cup"))
    arguments = {"aliased": one, "shown": Shown(user="ann", password=pydantic.SecretStr("x")), "anything": [one]}
    loaded = Signature(take_models).load(Signature(take_models).dump(arguments))
    assert (loaded["aliased"], loaded["shown"].password.get_secret_value()) == (one, "x")
    assert loaded["anything"][0]["itemName"] == "tea"


@pytest.mark.parametrize(
    "kind, model, field",
    [
        (TwoNames, TwoNames(n=2), "TwoNames.m"),
        (TwoNamesNeeded, TwoNamesNeeded(n=2), "n\n  Field required"),
        (Login, Login(user="ann", password=pydantic.SecretStr("x")), "Login.password"),
        (Around, Around(login=Login(user="ann", password=pydantic.SecretStr("x"))), "Around.login"),
    ],
)
def test_a_model_that_would_not_come_back_is_refused(kind: Any, model: Any, field: str) -> None:
    def task(it: Any) -> None: ...

    task.__annotations__["it"] = kind
    with pytest.raises(InvalidPayload, match=field):
        Signature(task).dump({"it": model})


def test_a_class_that_json_knows_nothing_of() -> None:
    def odd(what: Silent) -> None: ...

    with pytest.raises(InvalidPayload, match="Silent"):
        Signature(odd).load(b'{"what":1}')


def test_a_default_list_is_not_shared() -> None:
    signature = Signature(send)
    signature.load(b'{"to":"ann"}')["tags"].append("x")
    assert signature.load(b'{"to":"ann"}')["tags"] == []


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({}, "to"),
        ({"to": 1}, "str"),
        ({"to": "ann", "copies": "two"}, "copies"),
        ({"to": "ann", "extra": 1}, "extra"),
        ({"to": "ann", "tags": [1]}, "tags"),
        ({"to": "ann", "at": "yesterday"}, "at"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPayload, match=f"send: .*{problem}"):
        Signature(send).dump(arguments)


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"7", b"{", b'{"to":"ann","extra":1}', b"\xff", b'{"to":"\xff"}', b"[" * 100, None]
)
def test_a_stored_payload_that_does_not_fit_is_refused(document: bytes | None) -> None:
    with pytest.raises(InvalidPayload, match="send"):
        Signature(send).load(document)


def test_a_task_without_arguments_needs_no_payload() -> None:
    def tick() -> None: ...

    assert Signature(tick).load(None) == {}
    assert Signature(tick).dump({}) == b"{}"


def test_arguments_without_types_take_anything() -> None:
    def loose(a, b=None):  # type: ignore[no-untyped-def] # that is the point
        ...

    assert Signature(loose).load(b'{"a":[1,"x"]}') == {"a": [1, "x"], "b": None}


def positional(a: int, /) -> None: ...


def many(*a: int) -> None: ...


def named(**a: int) -> None: ...


@pytest.mark.parametrize("function", [positional, many, named])
def test_arguments_must_have_names(function: Any) -> None:
    with pytest.raises(InvalidPayload, match="by name"):
        Signature(function)
