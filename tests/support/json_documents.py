"""Random types, and documents of JSON for them: two thirds fit, the rest are damaged or do not.

All is drawn from one generator of random numbers, so that a seed says everything.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.support.fuzz_rounds import mutated

NAMES = ("a", "b", "id", "at", "tags", "customer", "a.b", "a b", "é", "😀", "_1", "x" * 70)
SCALARS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_PRECISIONS = ((1, 0), (5, 2), (9, 9), (18, 6), (19, 0), (38, 0), (38, 10), (38, 38))

# Numbers at limits: of integers, of what doubles and floats tell apart, of exponents.
EDGES = (
    "0|-0|-0.0|0e0|0E-5|0.1|1e0|1E+2|5.0|5.50|50e-1|0.05e2|127|128|-128|-129|32767|32768|"
    "-32769|2147483647|2147483648|-2147483648|-2147483649|9007199254740993|9223372036854775807|"
    "9223372036854775808|-9223372036854775808|-9223372036854775809|9223372036854775807.0|"
    "922337203685477580.7e1|18446744073709551616|99999999999999999999999999999999999999|"
    "100000000000000000000000000000000000000|0.99999999999999999999999999999999999999|"
    "0.1234567890123456789012345678901234567890|1.7976931348623157e308|1.7976931348623159e308|"
    "-1e309|1e400|1e-400|5e-324|2e-324|2.2250738585072014e-308|3.4028235e38|3.4028236e38|"
    "1.401298464324817e-45|7e-46|1.00000005960464477540|16777217|0.30000000000000004|"
    "123456789012345678901234567890e-10|1e1000000000000000000000|1e-1000000000000000000000|"
    "0e99999999999|1e22|1e23|8.41e21|9007199254740992e3|"
    "0.000000000000000000000000000000000000001"
).split("|")
_TIMES = (
    "2024-01-31|2024-02-29|2023-02-29|0001-01-01|9999-12-31|0000-01-01|2024-13-01|2024-1-31|"
    "20240131|2024-01-31T10:00:00Z|2024-01-31t10:00:00.5z|2024-01-31 10:00Z|"
    "2024-01-31T10:00:00+02:00|2024-01-31T10:00:00-0330|2024-01-31T10:00:00+02|"
    "2024-01-31T10:00:00+2|2024-01-31T10:00:00+18:00|2024-01-31T10:00:00+18:01|"
    "2024-01-31T10:00:00+02:60|2024-01-31T10:00:00|2024-01-31T10:00|2024-01-31 10|"
    "2024-01-31T10:00:00.123456|2024-01-31T10:00:00.123456Z|2024-01-31T10:00:00.123456000Z|"
    "2024-01-31T10:00:00.1234567Z|2024-01-31T10:00:00.1234567891Z|2024-01-31T10:00:00.Z|"
    "2024-01-31T23:59:59Z|2024-01-31T23:59:60Z|2024-01-31T24:00:00Z|2024-01-31T10:60:00Z|"
    "1969-12-31T23:59:59.999999Z|0001-01-01T00:00:00Z|9999-12-31T23:59:59.999999Z|"
    "0001-01-01T00:00:00|2024-01-31T10:00:00 Z| 2024-01-31|2024-01-31T10:00:00Z |"
    "2024-01-31T10:00:00[UTC]|2024-01-31T10:00:00UTC|+2024-01-31|-2024-01-31|12024-01-31|"
    "\uff12\uff10\uff12\uff14-01-31|today|2024-01-31  10:00:00Z|1706695200"
).split("|")
_TEXTS = [
    "x" * 300,
    "é" * 90,
    *(
        "|a|abc|Rome|true|null|5|1.50|-0|1e3|0x1F|NaN|Infinity|-Infinity|+Infinity|nan|1.|.5|01| 5|"
        '5 |+5|{}|[1]|"|\\|/|\x00|\x1f|\x7f|\n|\t|é|€|😀|\u2028|\ufeff|\uffff|QQ==|QUI=|QUJD|QQ='
        "|QQ|"
        "Q===|QUJD QUJD|_-8=|+/8=|QR=="
    ).split("|"),
]
WRONG = [
    *'true|false|0|1|-1|5.5|""|"x"|[]|{}|[[]]|[1, "x"]|{"a": 1}|{"a": null}|[null]'.split("|"),
    *(*EDGES, "1" + "0" * 400),
    *map(json.dumps, (*_TEXTS, *_TIMES)),
]
# What stands in place of a value, or anywhere, and is no JSON.
BROKEN = (
    b'|nul|True|NaN|-Infinity|Infinity|01|-|1.|.5|1e|+1|- 1|0x10|1_000|\'a\'|"a|"\\x"|"\\u12"|'
    b'"\\u12g4"|"\\ud800"|"\\udc00\\ud800"|"\\ud800\\u0041"|"\\|"\x00"|"\n"|"\x1f"|"\xff"|'
    b'"\xc3"|"\xc0\x80"|"\xed\xa0\x80"|"\xf4\x90\x80\x80"|"\xf0\x9f\x98"|[1,]|[,1]|[1 2]|[1|]|'
    b'{|}|{"a"}|{"a":}|{"a":1,}|{a:1}|{1:1}|{\'a\':1}|{"a" 1}|{"a":1 "b":2}|/**/1|1//|#|'
    b'\xef\xbb\xbf1|\xc2\xa01|\x0b1|\x0c1|1,|1 2|tru\xc3\xa9|1\xd9\xa3|\x00|[1}|{"a":1]|nulll|'
    b'truefalse|"a""b"|--1|1e5.5|1e+|0e|-01|00'
).split(b"|")


def a_type(rng: random.Random, depth: int = 3) -> pa.DataType:
    """Return a random type; of the deepest level a scalar."""
    if depth > 0 and rng.random() < (1 if depth == 3 else 0.4):
        kind = rng.choices(("struct", "list", "map"), (6, 1, 1))[0]
        if kind == "list":
            return pa.list_(pa.field("element", a_type(rng, depth - 1)))
        if kind == "map":
            return pa.map_(pa.string(), a_type(rng, depth - 1))
        names = rng.sample(NAMES, rng.choice((1, 2, 3, 3, 5, len(NAMES))))
        return pa.struct([(name, a_type(rng, depth - 1)) for name in names])
    if rng.random() < 0.15:
        return pa.decimal128(*rng.choice(_PRECISIONS))
    return rng.choice(list(SCALARS.values()))


class Documents:
    """Documents for one type; plain ones have nothing that `from_json` reads differently."""

    def __init__(self, rng: random.Random, kind: pa.DataType, *, is_plain: bool = False) -> None:
        self._rng, self._kind, self._is_plain = rng, kind, is_plain
        self._wrong = 0.0  # how likely each value is one of another type
        self._is_spaced = False

    def fitting(self) -> bytes:
        """Return a document that has no error."""
        self._is_spaced = self._rng.random() < 0.3
        text = self._value(self._kind)
        while self._is_plain and text == "null":
            text = self._value(self._kind)
        return self._around(text).encode()

    def any(self) -> bytes:
        """Return a document, one in three of which is damaged or of another type."""
        if self._rng.random() < 2 / 3:
            return self.fitting()
        return self.hurt()

    def hurt(self) -> bytes:
        """Return a document that hardly is without an error."""
        rng = self._rng
        if rng.random() < 0.55:
            self._wrong = rng.choice((0.05, 0.2, 0.5))
            found = self.fitting()
            self._wrong = 0
            return found
        return rng.choice(self._DAMAGES)(self, self.fitting())

    # Text that fits.

    def _around(self, text: str) -> str:
        return self._space() + text + self._space()

    def _space(self) -> str:
        return self._rng.choice(("", " ", "\n", "\t\r\n  ")) if self._is_spaced else ""

    def _value(self, kind: pa.DataType) -> str:
        rng = self._rng
        if rng.random() < self._wrong:
            return rng.choice(WRONG)
        if rng.random() < 0.07:
            return "null"
        if pa.types.is_struct(kind):
            return self._struct(kind)
        if pa.types.is_map(kind):
            names = dict.fromkeys(rng.choice(_TEXTS) for _ in range(rng.choice((0, 1, 2, 9))))
            return self._object([(name, self._value(kind.item_type)) for name in names])
        if pa.types.is_list(kind):
            count = rng.choice((0, 1, 1, 2, 3, 20))
            items = [self._around(self._value(kind.value_type)) for _ in range(count)]
            return f"[{','.join(items) or self._space()}]"
        return self._scalar(kind)

    def _struct(self, kind: pa.DataType) -> str:
        rng = self._rng
        pairs = [(one.name, self._value(one.type)) for one in kind if rng.random() < 0.9]
        if rng.random() < 0.2:
            rng.shuffle(pairs)
        while rng.random() < 0.2:
            passed_over = rng.choice((*_TEXTS, "A", "ID", "unknown"))
            if passed_over not in [one.name for one in kind]:
                pairs.insert(rng.randrange(len(pairs) + 1), (passed_over, rng.choice(WRONG)))
        return self._object(pairs)

    def _object(self, pairs: list[tuple[str, str]]) -> str:
        made = [f"{self._around(self._text(name))}:{self._around(text)}" for name, text in pairs]
        return f"{{{','.join(made) or self._space()}}}"

    def _text(self, text: str) -> str:
        """Return a string of JSON: as it is, or some characters or all as escapes."""
        rng = self._rng
        if rng.random() < 0.7:
            return json.dumps(text, ensure_ascii=rng.random() < 0.3)
        made = []
        for one in text:
            escaped = json.dumps(one) if rng.random() < 0.7 else self._escaped(one)
            made.append(escaped.strip('"') if one != '"' else '\\"')
        return f'"{"".join(made)}"'

    def _escaped(self, character: str) -> str:
        if character == "/":
            return "\\/"
        units = character.encode("utf-16-be")
        pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
        return "".join(f"\\u{self._rng.choice((one, one.upper()))}" for one in pairs)

    def _scalar(self, kind: pa.DataType) -> str:
        rng = self._rng
        if pa.types.is_boolean(kind):
            return rng.choice(("true", "false"))
        if pa.types.is_integer(kind):
            top = 2 ** (kind.bit_width - 1)
            return self._written(
                rng.choice((0, 1, -1, 7, 100, top - 1, -top, rng.randrange(-top, top)))
            )
        if pa.types.is_floating(kind):
            edges = (
                "0.1",
                "-0.0",
                "1e-400",
                "5e-324",
                "16777217",
                "1e22",
                "1e23",
                "0.30000000000000004",
            )
            some = (
                repr(rng.uniform(-1, 1)),
                repr(rng.uniform(-1e30, 1e30)),
                str(rng.randrange(10**25)),
            )
            return rng.choice((*edges, *some, '"NaN"', '"Infinity"', '"-Infinity"', "1.5E+3"))
        if pa.types.is_decimal(kind):
            return self._decimal(kind)
        if pa.types.is_string(kind):
            if rng.random() < 0.2 and not self._is_plain:
                return rng.choice(
                    ("5", "1.50", "-0e1", "true", "[1, 2 ]", '{"a" : "\\u00e9"}', "{}")
                )
            return self._text(rng.choice(_TEXTS))
        if pa.types.is_binary(kind):
            return self._text(
                base64.b64encode(rng.randbytes(rng.choice((0, 1, 2, 3, 40)))).decode()
            )
        return self._text(self._time(kind))

    def _written(self, number: int) -> str:
        """Return one of the ways to write a whole number."""
        if self._is_plain:
            return str(number)
        zeros = len(str(number)) - len(str(number).rstrip("0")) if number else 0
        ways = [f"{number}.0", f"{number}e0", f"{number or '-'}0E-1", f"{number}.00e+00"]
        ways.append(f"{number // 10**zeros}e{zeros}")
        return self._rng.choice((str(number), *ways))

    def _decimal(self, kind: pa.DataType) -> str:
        rng = self._rng
        digits = rng.randrange(kind.precision + 1)
        number = str(rng.randrange(10**digits)).rjust(kind.scale + 1, "0")
        whole, fraction = number[: len(number) - kind.scale], number[len(number) - kind.scale :]
        sign = rng.choice(("", "-"))
        text = f"{sign}{whole}.{fraction}" if kind.scale else f"{sign}{whole}"
        if rng.random() < 0.2:
            text = f"{sign}{int(number)}e-{kind.scale}"
        elif kind.scale and rng.random() < 0.3:
            text = f"{sign}{whole}.{fraction}0"
        return json.dumps(text) if rng.random() < 0.3 else text

    def _time(self, kind: pa.DataType) -> str:
        rng = self._rng
        year = rng.choice((1, 2, 1582, 1900, 1969, 1970, 2024, 2024, 9998, 9999))
        day = f"{year:04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
        if pa.types.is_date(kind):
            return rng.choice((day, "2024-02-29", "0001-01-01", "9999-12-31"))
        time = f"{rng.randrange(24):02}:{rng.randrange(60):02}"
        if rng.random() < 0.9 or self._is_plain:
            fraction = str(rng.randrange(10**6))[: rng.randrange(1, 7)] + rng.choice(("", "000"))
            time += f":{rng.randrange(60):02}" + rng.choice(("", f".{fraction}"))
        zone = ""
        if kind.tz is not None:
            zones = ("Z", "Z" if self._is_plain else "z", "+00:00", "-00:00")
            if 1 < year < 9999:
                zones += ("+02:00", "-0330", "+14", "-18:00", "+05:45")
            zone = rng.choice(zones)
        return day + rng.choice("TT " if self._is_plain else "TTt ") + time + zone

    # Damage.

    def _mutated(self, document: bytes) -> bytes:
        return mutated(self._rng, document)

    def _cut(self, document: bytes) -> bytes:
        return document[: self._rng.randrange(len(document) + 1)]

    def _left_over(self, document: bytes) -> bytes:
        return document + self._rng.choice(
            (b"x", b"{}", b"\0", b"]", b",", b"null", b"\n\0", document)
        )

    def _in_front(self, document: bytes) -> bytes:
        return (
            self._rng.choice((b"\xef\xbb\xbf", b"\0", b",", b"\xff\xfe", b"/**/", b"\x0c"))
            + document
        )

    def _doubled(self, document: bytes) -> bytes:
        """Put the first pair of an object twice."""
        begin, end = document.find(b"{"), document.find(b",")
        if 0 <= begin < end:
            return document[:end] + b"," + document[begin + 1 :]
        return document + document

    def _broken(self, document: bytes) -> bytes:
        """Put what is no JSON in place of a value, or anywhere."""
        marks = [at + 1 for at in range(len(document)) if document[at] in b":,[{"]
        at = self._rng.choice((self._rng.randrange(len(document) + 1), *marks))
        end = at + self._rng.choice((0, 1, 4))
        return document[:at] + self._rng.choice(BROKEN) + document[end:]

    def _replaced(self, document: bytes) -> bytes:
        return self._rng.choice((*BROKEN, *(one.encode() for one in WRONG)))

    def _deep(self, document: bytes) -> bytes:
        """Put a value into as many brackets as may be, or one more, or as fill a stack."""
        depth = self._rng.choice((10, 498, 499, 500, 501, 5000))
        opening, closing = self._rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
        deep = opening * depth + document + closing * depth
        return deep if self._rng.random() < 0.5 else b'{"unknown":' + deep + b"}"

    def _spaced_out(self, document: bytes) -> bytes:
        return self._rng.choice((b"", b" ", b"\n\t\r ", b" " * 1000))

    _DAMAGES: tuple[Callable[[Any, bytes], bytes], ...] = (
        *(_mutated, _mutated, _cut, _left_over, _in_front, _doubled),
        *(_broken, _broken, _broken, _replaced, _deep, _spaced_out),
    )
