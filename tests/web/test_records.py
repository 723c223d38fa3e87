"""Pages of records, asked as a browser asks: which are shown and in what form, whatever they hold, and what is wrong."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from bs4 import BeautifulSoup, Tag

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.web.records import PARTITIONS_READ
from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site
from tests.cli.test_terminal import unescaped
from tests.consumer.test_batch_reads import a_brokers_log
from tests.store.test_any_place import PLACES
from tests.support import builders
from tests.support.fake_registry import FakeRegistry
from tests.support.pages import TOKEN, Visitor, shown
from tests.support.reference import compress, encode_bytes, encode_varint, frame_batch

TOPIC = "a.b_c-d"
RECORDS = f"/topics/{TOPIC}/records"
MiB = 1 << 20
ZSTD = 4  # as a batch has it
SHOWN_BYTES, WHOLE_BYTES = 2 << 10, 256 << 10  # of a key or a value, and on the page of its record

HOSTILE = {
    "a script": b"<script>alert(1)</script>",
    "an attribute": b"\"'><img src=x onerror=alert(1)>",
    "a template": b"{{ 7 * 7 }}{% raw %}",
    "control characters": bytes(range(32)) + b"\x7f\x1b[2J\x1b]0;t\x07",
    "no UTF-8": b"\xff\xfe\xc3(\xed\xa0\x80",
    "what reorders a line": "a\u202eb\u2066c\u2028d\x9b\U000e0001".encode(),
    "escapes": rb"\x1b \u202e \\ \N \n",
    "what looks like null": b"null",
    "nothing": b"",
}


def page(visitor: Visitor, address: str, status: int = 200, **asked: object) -> Tag:
    """Return the content of a page."""
    answer = visitor.ask(f"{address}?{urlencode(asked)}" if asked else address)
    assert answer.status == status, answer.text
    content = BeautifulSoup(answer.text, "html.parser").find("main")
    assert isinstance(content, Tag)
    # Nothing of a record is a part of the page.
    assert not content.find(["script", "img", "iframe", "style", "object", "base"])
    assert not [one for tag in content.find_all(True) for one in tag.attrs if one.startswith("on")]
    return content


def link_of(content: Tag, words: str) -> str | None:
    found = content.find("a", string=words)
    return str(found["href"]) if isinstance(found, Tag) else None


def rows(content: Tag) -> list[list[str]]:
    """Return what the cells of the table of records say."""
    return [
        [cell.get_text().strip() for cell in row.find_all(["td", "th"])]
        for row in content.select("table.records tbody tr")
    ]


def offsets(content: Tag) -> list[tuple[int, int]]:
    return [(int(row[0]), int(row[1])) for row in rows(content)]


def values(content: Tag) -> list[str]:
    return [row[4] for row in rows(content)]


def told(content: Tag) -> str:
    """Return what is said to be wrong."""
    why = content.find(role="alert")
    assert isinstance(why, Tag)
    return why.get_text()


def create(cluster: Cluster, given: Sequence[bytes | None], partitions: int = 1) -> None:
    """Create a topic with these values; record n is in partition n % partitions, with time n."""
    cluster.create_topic(TOPIC, partitions)
    with cluster.producer(max_request_size=4 * MiB) as producer:
        for n, value in enumerate(given):
            producer.send(
                TOPIC, value, key=f"k{n % 3}", partition=n % partitions, timestamp=n,
                headers=[("n", str(n).encode())],
            )  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        yield cluster


@pytest.fixture
def visitor(cluster: Cluster) -> Iterator[Visitor]:
    with shown(cluster) as pages:
        yield Visitor(pages)


NUMBERED = [str(n).encode() for n in range(100)]


@pytest.mark.parametrize("place", [name for name in PLACES if "merged" not in name])
def test_the_newest_come_first_and_links_lead_to_all_others_and_back(
    place: str, tmp_path: Path
) -> None:
    with PLACES[place](tmp_path) as cluster:
        create(cluster, NUMBERED, partitions=2)
        with shown(cluster) as pages:
            visitor = Visitor(pages)
            content = page(visitor, RECORDS)
            assert link_of(content, "Newer") is None
            found = values(content)
            assert found == [str(n) for n in range(99, 79, -1)]
            assert offsets(content)[:3] == [(1, 49), (0, 49), (1, 48)]
            while older := link_of(content, "Older"):
                content = page(visitor, older)
                found += values(content)
            assert found == [str(n) for n in range(99, -1, -1)]
            back = values(content)
            while newer := link_of(content, "Newer"):
                content = page(visitor, newer)
                back = values(content) + back
            assert back == found


def test_from_an_offset_or_a_time_the_oldest_come_first(cluster: Cluster, visitor: Visitor) -> None:
    create(cluster, NUMBERED, partitions=2)

    content = page(visitor, RECORDS, start=10)
    assert values(content) == [str(n) for n in range(20, 40)]
    content = page(visitor, link_of(content, "Newer") or "")
    assert values(content) == [str(n) for n in range(40, 60)]
    assert values(page(visitor, RECORDS, start="0:48, 1:49")) == ["96", "98", "99"]
    assert values(page(visitor, RECORDS, start="1970-01-01T00:00:00.095Z")) == [
        "95", "96", "97", "98", "99",
    ]  # fmt: skip
    assert len(values(page(visitor, RECORDS, start=0, count=100))) == 100
    assert values(page(visitor, RECORDS, start=48, partitions=1)) == ["97", "99"]


def test_by_key_by_condition_and_by_both(cluster: Cluster, visitor: Visitor) -> None:
    create(cluster, NUMBERED)

    assert values(page(visitor, RECORDS, key="k1", count=100)) == [str(n) for n in range(97, 0, -3)]
    assert values(page(visitor, RECORDS, where="headers['n'] IN ('5', '7')")) == ["7", "5"]
    assert values(page(visitor, RECORDS, key="k1", where="offset < 5 OR offset = 94")) == [
        "94", "4", "1",
    ]  # fmt: skip
    content = page(visitor, RECORDS, where="key = 'none'")
    assert "There are no such records." in content.get_text()


def test_the_link_of_a_key_leads_to_its_records_whatever_it_is(
    cluster: Cluster, visitor: Visitor
) -> None:
    cluster.create_topic(TOPIC)
    with cluster.producer() as producer:
        for n, key in enumerate(HOSTILE.values()):
            producer.send(TOPIC, str(n), key=key)
            producer.send(TOPIC, str(n), key="other")

    links = page(visitor, RECORDS).find_all("a", string="only these")
    found = {tuple(values(page(visitor, str(one["href"])))) for one in links}

    others = tuple(str(n) for n in range(len(HOSTILE) - 1, -1, -1))
    assert found == {*((n,) for n in others[1:]), others}  # an empty key has no link


@pytest.mark.parametrize("form", ["text", "json", "hex"])
def test_what_a_record_holds_is_shown_and_is_no_part_of_the_page(
    cluster: Cluster, visitor: Visitor, form: str
) -> None:
    cluster.create_topic(TOPIC)
    with cluster.producer() as producer:
        for data in HOSTILE.values():
            name = data.decode(errors="replace")
            producer.send(TOPIC, data, key=data, headers=[(name, data), ("none", None)])

    for offset, data in enumerate(reversed(HOSTILE.values())):
        key, value, headers = rows(page(visitor, RECORDS, show=form))[offset][3:]
        whole = page(visitor, f"{RECORDS}/0/{len(HOSTILE) - 1 - offset}", show=form)
        shown_whole = [one.get_text().strip() for one in whole.find_all("dd")]
        if not data:
            assert (key, value, shown_whole[2]) == ("empty", "empty", "empty")
            continue
        if form == "hex":
            for text in (value, shown_whole[2]):
                assert bytes.fromhex(text) == data
        else:
            assert unescaped(value) == unescaped(shown_whole[2]) == data
        assert unescaped(key.removesuffix(" only these")) == data
        name, _, rest = headers.partition(" = ")
        assert unescaped(name) == data.decode(errors="replace").encode()
        assert unescaped(rest.partition("\n")[0]) == data
        assert headers.endswith("none = null")


def test_no_two_records_look_alike(cluster: Cluster, visitor: Visitor) -> None:
    create(cluster, [None, b"", b"null", b"empty", rb"\N", rb"\x00", b"\x00", b"\\", rb"\\"])

    cells = page(visitor, RECORDS).select("table.records tbody tr td:nth-of-type(4)")

    assert len({str(cell.decode_contents()) for cell in cells}) == 9
    assert str(cells[-1].decode_contents()).strip() == '<em class="quiet">null</em>'


def test_json_is_shown_as_it_is_written_with_each_part_on_a_line(
    cluster: Cluster, visitor: Visitor
) -> None:
    text = '{"b":[1.50,1e400,{},[ ]],"b":{"<i>":"\\u202e\u202e\x7f\\n"},"n":' + "9" * 5000 + "}"
    create(cluster, [text.encode(), b"NaN", b"1 2", b'{"a":1', b"\xef\xbb\xbf1"])

    shown_text = page(visitor, f"{RECORDS}/0/0", show="json").find("pre").get_text()

    assert shown_text.split("\n")[:13] == [
        "{", '  "b": [', "    1.50,", "    1e400,", "    {},", "    [ ]", "  ],", '  "b": {',
        '    "<i>": "\\u202e\\u202e\\u007f\\n"', "  },", '  "n": ' + "9" * 5000, "}",
    ]  # fmt: skip
    pairs = json.loads(text, object_pairs_hook=list, parse_int=str)
    assert json.loads(shown_text, object_pairs_hook=list, parse_int=str) == pairs
    for offset in range(1, 5):
        content = page(visitor, f"{RECORDS}/0/{offset}", show="json")
        assert content.find("pre") is None
        assert "It is no JSON" in content.get_text()


@pytest.mark.parametrize("levels", [500, 10_000, 100_000])
def test_json_of_many_levels_breaks_nothing(
    cluster: Cluster, visitor: Visitor, levels: int
) -> None:
    create(cluster, [b"[" * levels + b"]" * levels, b"[" * 200_000])

    answer = visitor.get(f"{RECORDS}/0/0?show=json")
    found = BeautifulSoup(answer.text, "html.parser").find_all("dd")[2].get_text()
    assert re.sub(r"\s", "", found) == "[" * levels + "]" * levels
    assert len(answer.text) < 8 * MiB
    page(visitor, RECORDS, show="json")
    page(visitor, RECORDS, show="json-columns", schema="array<array<string>>")


def test_large_ones_are_cut_and_the_record_has_more_of_them(
    cluster: Cluster, visitor: Visitor
) -> None:
    cluster.create_topic(TOPIC, config={"max.message.bytes": 8 * MiB})
    with cluster.producer(max_request_size=8 * MiB) as producer:
        large, many = "é".encode() * MiB, [("h" * 1000, b"x" * 1000)] * 1000
        producer.send(TOPIC, large, key=large[:MiB], headers=many)

    answer = visitor.get(RECORDS)
    assert len(answer.text) < 5 * SHOWN_BYTES + 20_000
    content = page(visitor, RECORDS)
    (row,) = rows(content)
    assert row[4].startswith("é" * (SHOWN_BYTES // 2) + " and more, 2.0 MiB in all")
    assert "and 995 more" in row[5]
    assert "only these" not in row[3]
    answer = visitor.get(str(link_of(content, "Show more")))
    assert "é" * (WHOLE_BYTES // 2) + "</code>" in answer.text
    assert "and 800 more" in answer.text
    assert len(answer.text) < 3 * WHOLE_BYTES


def test_a_page_reads_a_bounded_part_of_a_topic_and_goes_on_by_a_link(
    cluster: Cluster, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, [b"x" * 100_000] * 400)  # 40 MB
    read = count_reads(cluster, monkeypatch)

    content = page(visitor, RECORDS, key="none")
    assert MiB < sum(read) < 10 * MiB
    assert "no such record among those that were looked at" in content.get_text()
    pages = 1
    while older := link_of(content, "Older"):
        read.clear()
        content, pages = page(visitor, older), pages + 1
        assert sum(read) < 10 * MiB
    assert 3 < pages < 10
    read.clear()
    page(visitor, RECORDS)
    page(visitor, f"{RECORDS}/0/200")
    assert sum(read) < 5 * MiB


def count_reads(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what will be read of logs."""
    found, source = list[int](), type(cluster._reader.source)
    fetch: Callable[..., tuple[pa.Buffer, object]] = source.fetch

    def counted(*given: object) -> object:
        read = fetch(*given)
        found.append(len(read[0].data))
        return read

    monkeypatch.setattr(source, "fetch", counted)
    return found


def test_of_many_partitions_some_are_read_and_links_lead_to_the_others(
    cluster: Cluster, visitor: Visitor
) -> None:
    create(cluster, [str(n).encode() for n in range(240)], partitions=120)

    content = page(visitor, RECORDS, count=100)
    assert {partition for partition, _ in offsets(content)} == {*range(PARTITIONS_READ)}
    assert "of 50 partitions, of 120 that there are" in content.get_text()
    seen = len(values(content))
    for _ in range(2):
        content = page(visitor, str(link_of(content, "Other partitions")))
        seen += len(values(content))
    assert seen == 240
    assert link_of(content, "Other partitions") is None


def test_values_are_columns_of_json_by_a_ddl(cluster: Cluster, visitor: Visitor) -> None:
    create(cluster, [b'{"id":7,"tags":["<b>",null]}', b"no JSON", b'{"id":null}', None])
    ddl = "id bigint, tags array<string>"

    content = page(visitor, RECORDS, show="json-columns", schema=ddl)

    heads = [one.get_text() for one in content.select("table.records thead th")]
    assert heads == ["Partition", "Offset", "Time", "Key", "id", "tags", "Headers"]
    found = rows(content)
    assert [row[4:6] for row in (found[0], found[1], found[3])] == [
        ["null", "null"], ["null", "null"], ["7", '["<b>",null]'],
    ]  # fmt: skip
    assert "JSON" in found[2][4]
    content = page(visitor, RECORDS, show="json-columns", schema=ddl, where="value.id = 7")
    assert len(rows(content)) == 1
    whole = page(visitor, str(link_of(content, "0")))
    assert [one.get_text().strip() for one in whole.find_all("dd")][2:4] == ["7", '["<b>",null]']
    content = page(visitor, RECORDS, show="json-columns", schema="string")
    assert values(content)[3] == json.dumps('{"id":7,"tags":["<b>",null]}')


def test_values_are_columns_of_avro_by_the_operators_registry(cluster: Cluster) -> None:
    schema = {
        "type": "record", "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "<i>", "type": ["null", "string"]}],
    }  # fmt: skip
    schema["fields"][1]["name"] = "city"
    with FakeRegistry() as registry:
        table = pa.table({"id": [1, 2], "city": ["<Rome>", None]})
        orders = spark_kbatch.encode_values(
            table, registry=registry.url, value_subject=f"{TOPIC}-value", value_schema=schema,
            auto_register=True,
        )  # fmt: skip
        create(cluster, [*orders.to_pylist(), b"\x00none"])
        site = Site(cluster, registry={"url": registry.url})
        with WebServer(site, "127.0.0.1", 0, token=TOKEN) as pages:
            visitor = Visitor(pages)
            found = rows(page(visitor, RECORDS, show="avro"))
            assert [row[4:6] for row in found[1:]] == [["2", "null"], ["1", '"<Rome>"']]
            assert "value" in found[0][4]
            assert values(page(visitor, RECORDS, show="avro", schema="version:1"))[1:] == ["2", "1"]
            content = page(visitor, RECORDS, 400, show="avro", schema="version:9")
            assert "version 9" in told(content)
            registry.next_answers("503", times=50)
            content = page(visitor, RECORDS, 400, show="avro", schema="id:77")
            assert "503" in told(content)
            assert "(attempt 1, after 0" in told(content)


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"where": "kye = 'a'"}, 400, "at character 1, kye: no column has the name"),
        ({"where": "key ="}, 400, "the end"),
        ({"where": "<script>"}, 400, "<"),
        ({"where": "offset < 5", "show": "json-columns", "schema": "id int", "key": "\\"}, 200, ""),
        ({"start": "five"}, 400, "accepted: an offset, or one for each partition"),
        ({"start": "0:1,5"}, 400, "accepted: an offset"),
        ({"start": "9" * 19}, 400, "accepted"),
        ({"start": "101"}, 400, "the log holds offsets 0 to 3 (exclusive)"),
        ({"before": "101"}, 400, "the log holds offsets 0 to 3 (exclusive)"),
        ({"start": "0:1,7:1"}, 400, "names the partitions"),
        ({"start": "2", "before": "1"}, 400, "after its end"),
        ({"start": "yesterday"}, 400, "such as 2024-10-25T08:00:00Z"),
        ({"start": "-5"}, 400, "accepted"),
        ({"start": "0001-01-01T00:00:00+05:00"}, 200, ""),
        ({"start": "9999-12-31T23:59:59-05:00"}, 200, ""),
        ({"start": "9" * 5000}, 400, "accepted"),
        ({"partitions": "all"}, 400, "accepted"),
        ({"show": "avro"}, 400, "no schema is known"),
        ({"show": "json-columns", "schema": "id bigwhat"}, 400, "bigwhat"),
        ({"show": "avro", "schema": "file:/etc/hostname"}, 400, "names a file"),
        ({"show": "avro", "schema": " \ufeffFILE:///etc/hostname"}, 400, "schema"),
        ({"show": "json-columns", "schema": "id int", "framing": "odd"}, 400, "odd"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_above_what_was_asked(
    cluster: Cluster, visitor: Visitor, asked: dict[str, str], status: int, said: str
) -> None:
    create(cluster, [b"1", b"2", b"3"])

    content = page(visitor, RECORDS, status, **asked)

    if said:
        assert said in told(content)
        assert content.find("input", {"name": "where"})["value"] == asked.get("where", "")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/topics/none/records", "topic 'none' does not exist"),
        (f"{RECORDS}?partitions=7", "a.b_c-d-7 does not exist"),
        (f"{RECORDS}/0/3", "offset 4 of a.b_c-d-0 is out of range"),
        (f"{RECORDS}/7/0", "a.b_c-d-7 does not exist"),
        (f"{RECORDS}/0/-1", "There is no page"),
        (f"{RECORDS}/0/{'9' * 30}", "There is no page"),
        (f"{RECORDS}/zero/0", "There is no page"),
    ],
)
def test_what_is_not_there_is_said(
    cluster: Cluster, visitor: Visitor, address: str, said: str
) -> None:
    create(cluster, [b"1", b"2", b"3"])

    assert said in page(visitor, address, 404).get_text()


def test_parameters_that_are_none_of_ours_change_nothing(
    cluster: Cluster, visitor: Visitor
) -> None:
    create(cluster, NUMBERED)
    odd = {"count": "10**9", "show": "pdf", "order": "random", "key": "", "path": "/", "x": "y"}

    assert len(values(page(visitor, RECORDS, **odd))) == 20


def test_a_record_of_a_million_headers_costs_no_more_than_those_that_are_shown(
    cluster: Cluster, visitor: Visitor
) -> None:
    """It has a few hundred bytes on disk."""
    count = 1_000_000
    cluster.create_topic(TOPIC)
    body = b"\0\0\0" + encode_bytes(b"k") + encode_bytes(b"v") + encode_varint(count)
    body += (encode_bytes(b"") + encode_bytes(None)) * count
    data = compress(ZSTD, encode_varint(len(body)) + body)
    batch = frame_batch(data, attributes=ZSTD, base_timestamp=1, max_timestamp=1)
    builders.append_records(cluster, {(TOPIC, 0): batch})
    assert len(batch) < 1000
    cluster.peek(TOPIC)  # with all that Python compiles and loads

    tracemalloc.start()
    try:
        listed, whole = page(visitor, RECORDS), page(visitor, f"{RECORDS}/0/0")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert rows(listed)[0][-1].endswith("and 999,995 more Show more")
    assert whole.find_all("dd")[-1].get_text().strip().endswith("and 999,800 more")
    assert most < 100 * MiB


def test_an_offset_without_a_record_says_why(tmp_path: Path) -> None:
    with open_for_reading(str(a_brokers_log(tmp_path / "logs"))) as logs, shown(logs) as pages:
        visitor = Visitor(pages)
        assert offsets(page(visitor, "/topics/t/records")) == [(0, 4), (0, 0)]
        content = page(visitor, "/topics/t/records/0/2", 404)
        assert "a transaction that was aborted" in content.get_text()
        assert offsets(page(visitor, str(link_of(content, "Records from it on")))) == [(0, 4)]
        assert offsets(page(visitor, str(link_of(content, "Records before it")))) == [(0, 0)]


def test_damage_is_named_beside_what_can_be_read(cluster: Cluster, visitor: Visitor) -> None:
    create(cluster, [b"sound", b"damaged"], partitions=2)
    log = next(cluster.path.rglob(f"{TOPIC}-1/*.log"))
    log.write_bytes(log.read_bytes().replace(b"damaged", b"dbmaged"))

    content = page(visitor, RECORDS)

    assert values(content) == ["sound"]
    assert f"{TOPIC}-1: corrupt record batch" in content.get_text()
    assert "corrupt record batch" in page(visitor, f"{RECORDS}/1/0", 500).get_text()
    assert link_of(page(visitor, f"{RECORDS}/1/0", 500), "Records before it")


def test_no_one_sees_records_without_the_token(cluster: Cluster) -> None:
    create(cluster, [b"secret"])
    with shown(cluster) as pages:
        for address in (RECORDS, f"{RECORDS}/0/0", f"{RECORDS}?token=wrong"):
            answer = Visitor(pages, token=None).ask(address)
            assert answer.status == 401
            assert "secret" not in answer.text
