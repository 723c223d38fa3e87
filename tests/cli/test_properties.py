r"""Properties files mean what they mean to Java: the expected values are those of java.util.Properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kbatch.cli.parameters import parse_properties, read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b\nc d\n e\t=f", {"a": "b", "c": "d", "e": "f"}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("a\nb=", {"a": "", "b": ""}),
        ("# a=b\n  ! c=d\n\n \t\ne=#f", {"e": "#f"}),
        ("a=b\\\n   c\\\r\n\td\ne=f", {"a": "bcd", "e": "f"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("a=b\\", {"a": "b"}),
        ("a\\ b\\:\\=c=d", {"a b:=c": "d"}),
        ("a=\\u00e9\\t\\n\\x\\\\", {"a": "\u00e9\t\nx\\"}),
        ("a=b\ra=c", {"a": "c"}),
        ("=b", {"": "b"}),
    ],
    ids=["plain", "spaces", "separators", "two equals signs", "second equals sign", "no value",
         "comments", "continued", "escaped backslash", "a continued comment sign",
         "continued at the end", "escapes in a key", "escapes in a value", "a key twice", "no key"],
)  # fmt: skip
def test_text_is_parsed(text: str, expected: dict[str, str]) -> None:
    assert dict(parse_properties(text)) == expected


def test_a_file_is_latin_1_as_for_java(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes("ssl.key.password=é".encode())
    assert read_properties(str(file)) == {"ssl.key.password": "Ã©"}


def test_the_error_for_a_bad_escape_names_the_line_and_no_value() -> None:
    with pytest.raises(ValueError, match="line 3 has") as caught:
        dict(parse_properties("a=b\n#\nc=s3cret\\\n\\u12x4"))
    assert "s3cret" not in str(caught.value)
