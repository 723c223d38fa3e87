"""The client of a registry over HTTP: what it sends, and what it makes of each way to fail."""

from __future__ import annotations

import gzip
import html
import json
import logging
import os
import socket
import ssl
import threading
import time
import tracemalloc
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from spark_kbatch.errors import (
    ConfigError,
    IncompatibleSchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from spark_kbatch.registry.endpoint import Endpoint, RegistryClient, RegistryTimeouts
from spark_kbatch.registry.schemas import LATEST_VERSION, Schema
from tests.registry.conftest import TIMEOUTS, Pauses, client_of, endpoint_of, options_of
from tests.support.certificates import Authority
from tests.support.dripping import PARTS, Dripping
from tests.support.fake_registry import FakeRegistry

TEXT = Schema('"string"')
PASSWORD = "pass:wörd-of-the-test"
TOKEN = "token-of-the-test"


def answering(listener: socket.socket, answer: bytes) -> threading.Thread:
    """Start a thread that answers one request so."""

    def serve() -> None:
        with listener.accept()[0] as client:
            client.recv(65536)
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_the_requests_are_those_of_the_api(fake: FakeRegistry) -> None:
    client = client_of(fake.url)
    client.register("a/b", TEXT)
    client.by_id(1, ":.:a/b")
    client.versions("a/b")
    client.versions("a/b", deleted=True)
    client.version("a/b", 1)
    client.version("a/b", LATEST_VERSION)
    client.look_up("a/b", TEXT)

    assert fake.asked == [
        "POST /subjects/a%2Fb/versions",
        "GET /schemas/ids/1?subject=%3A.%3Aa%2Fb",
        "GET /subjects/a%2Fb/versions",
        "GET /subjects/a%2Fb/versions?deleted=true",
        "GET /subjects/a%2Fb/versions/1?deleted=true",
        "GET /subjects/a%2Fb/versions/latest",
        "POST /subjects/a%2Fb",
    ]


def test_a_deleted_version_can_still_be_read_and_is_not_the_latest(fake: FakeRegistry) -> None:
    for text in ('"string"', '"long"'):
        fake.register("orders-value", text)
    fake.delete("orders-value", 2)
    client = client_of(fake.url)

    assert client.versions("orders-value") == [1]
    assert client.versions("orders-value", deleted=True) == [1, 2]
    assert client.version("orders-value", 2).schema.text == '"long"'
    assert client.version("orders-value", LATEST_VERSION).version == 1


def test_a_url_may_have_the_path_of_a_context(fake: FakeRegistry) -> None:
    fake.register(":.staging:orders-value", '"long"')

    assert client_of(f"{fake.url}/contexts/.staging/").by_id(1).schema.text == '"long"'


def test_a_guid_is_an_id_of_a_context(fake: FakeRegistry) -> None:
    guid = "00000000-0000-0001-0000-000000000005"
    fake.add_at(7, "orders-value", TEXT.text, guid=guid)
    fake.add_at(3, ":.staging:orders-value", TEXT.text, guid=guid)
    client = client_of(fake.url)

    assert (client.by_id(guid).id, client.by_id(guid, ":.staging:x").id) == (7, 3)
    assert client.by_id(7, "orders-value").guid == guid
    assert fake.asked[:2] == [f"GET /schemas/guids/{guid}/ids", "GET /schemas/ids/7"]
    assert fake.headers[0]["Confluent-Accept-Unknown-Properties"] == "true"
    with pytest.raises(SchemaNotFoundError, match=r"not in '\.other': \., \.staging"):
        client.by_id(guid, ":.other:x")
    fake.next_answers("odd")
    with pytest.raises(SchemaRegistryError, match="its answer is no list of ids"):
        client.by_id(guid)


def test_a_schema_whose_rules_encrypt_says_so(fake: FakeRegistry) -> None:
    fake.register("orders-value", '"string"', ruleSet={"domainRules": [{"type": "ENCRYPT"}]})

    assert client_of(fake.url).by_id(1).encrypts


@pytest.mark.parametrize("answer", ["500", "502", "503", "429", "408", "cut", "closed"])
def test_what_may_pass_is_retried(fake: FakeRegistry, pauses: Pauses, answer: str) -> None:
    fake.register("orders-value", '"string"')
    fake.next_answers(answer, times=3)

    assert client_of(fake.url, pauses).by_id(1).schema == TEXT
    assert len(fake.asked) == 4
    assert len(pauses.taken) == 3


def test_pauses_grow_up_to_a_maximum_with_jitter(fake: FakeRegistry, pauses: Pauses) -> None:
    fake.register("orders-value", '"string"')
    fake.next_answers("500", times=9)
    client_of(fake.url, pauses).by_id(1)

    assert pauses.taken == sorted(pauses.taken[:5]) + pauses.taken[5:]
    assert all(pause <= 5 for pause in pauses.taken)
    assert len({*pauses.taken}) > 5


def test_a_registry_that_says_when_to_come_back_is_asked_no_sooner(
    fake: FakeRegistry, pauses: Pauses
) -> None:
    fake.register("orders-value", '"string"')
    fake.next_answers("busy")

    assert client_of(fake.url, pauses).by_id(1).schema == TEXT
    assert pauses.taken == [7]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("500", "it answered 500"), ("429", "it answered 429"), ("cut", "its answer was cut off"),
        ("closed", "the connection was lost"),
    ],
)  # fmt: skip
def test_a_registry_that_fails_for_good_is_an_outage_after_a_minute(
    fake: FakeRegistry, pauses: Pauses, answer: str, words: str
) -> None:
    fake.next_answers(answer, times=1000)

    with pytest.raises(SchemaRegistryUnavailableError) as error:
        client_of(fake.url, pauses).by_id(7, "orders-value")
    assert f"{fake.url}, asked for schema id 7 of subject 'orders-value': {words}" in str(
        error.value
    )
    assert "'schema.registry.url'" in str(error.value)
    assert 50 <= sum(pauses.taken) <= 60


def test_a_client_without_retries_fails_at_once(fake: FakeRegistry, pauses: Pauses) -> None:
    fake.next_answers("500")
    endpoint = Endpoint(options_of(fake.url), timeouts=TIMEOUTS, sleep=pauses.sleep)

    with pytest.raises(SchemaRegistryUnavailableError):
        RegistryClient(endpoint, retries=False).by_id(1)
    assert pauses.taken == []


def test_a_registry_that_is_not_there_is_an_outage(pauses: Pauses) -> None:
    with pytest.raises(SchemaRegistryUnavailableError, match="no connection: Connection refused"):
        client_of(f"http://127.0.0.1:{free_port()}", pauses).by_id(1)
    assert len(pauses.taken) > 5


@pytest.mark.parametrize("part", PARTS)
def test_an_answer_that_comes_in_drops_is_not_waited_for(part: str) -> None:
    timeouts = RegistryTimeouts(request_timeout_ms=300, retry_ms=0)

    with Dripping(part) as server:
        started_s = time.monotonic()
        with pytest.raises(
            SchemaRegistryUnavailableError, match="no whole answer came within 300 ms"
        ):
            RegistryClient(Endpoint(options_of(server.url), timeouts=timeouts)).by_id(1)
        assert time.monotonic() - started_s < 2
    assert server.asked == 1


def test_each_request_of_a_kept_connection_has_its_own_time(fake: FakeRegistry) -> None:
    timeouts = RegistryTimeouts(request_timeout_ms=400, retry_ms=0)
    client = RegistryClient(Endpoint(options_of(fake.url), timeouts=timeouts))
    schema_id = fake.register("t-value", '"string"')

    for _ in range(4):
        assert client.by_id(schema_id).schema.text == '"string"'
        time.sleep(0.15)


def test_an_answer_in_an_encoding_that_no_one_asked_for_is_not_decoded() -> None:
    """A few bytes would become gigabytes."""
    body = gzip.compress(gzip.compress(bytes(64 << 20)))
    answer = (
        f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = answering(listener, answer.encode() + body)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tracemalloc.start()
        with pytest.raises(SchemaRegistryError, match="its answer is not JSON"):
            RegistryClient(Endpoint(options_of(url))).by_id(1)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        thread.join()
    assert most < 16 << 20


def test_a_registry_that_does_not_answer_is_not_waited_for() -> None:
    timeouts = RegistryTimeouts(request_timeout_ms=300, retry_ms=0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            SchemaRegistryUnavailableError, match="no whole answer came within 300 ms"
        ):
            RegistryClient(Endpoint(options_of(url), timeouts=timeouts)).by_id(1)


def test_the_next_url_is_asked_at_once_and_then_remembered(
    fake: FakeRegistry, pauses: Pauses
) -> None:
    fake.register("orders-value", '"string"')
    with FakeRegistry() as broken:
        broken.next_answers("500", times=1000)
        client = client_of(f"{broken.url},{fake.url}", pauses)

        assert [client.by_id(1).schema for _ in range(3)] == [TEXT] * 3
        assert (len(broken.asked), len(fake.asked), pauses.taken) == (1, 3, [])


def test_an_outage_of_all_urls_names_each(fake: FakeRegistry, pauses: Pauses) -> None:
    fake.next_answers("500", times=1000)
    down = f"http://127.0.0.1:{free_port()}"

    with pytest.raises(SchemaRegistryUnavailableError) as error:
        client_of(f"{down},{fake.url}", pauses).by_id(1)
    assert f"{down}: no connection" in str(error.value)
    assert f"{fake.url}: it answered 500" in str(error.value)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ("401", SchemaRegistryError, "it answered 401 Unauthorized.*give a user with"),
        ("403", SchemaRegistryError, "it answered 403 Forbidden"),
        ("404", SchemaRegistryError, "this is no answer of a schema registry"),
        ("not found", SchemaRegistryError, "this is no answer of a schema registry"),
        ("409", IncompatibleSchemaError, "the schema is refused: it answered 409 Conflict: so it is"),
        ("422", SchemaRegistryError, "it answered 422 .*so it is"),
        ("html", SchemaRegistryError, "its answer is not JSON: it starts with '<!DOCTYPE html>"),
        ("redirect", SchemaRegistryError, "redirects are not followed"),
        ("odd", SchemaRegistryError, "it has no schema"),
        ("huge", SchemaRegistryError, "longer than 16777216 bytes"),
    ],
)  # fmt: skip
def test_what_does_not_pass_is_an_error_at_once(
    fake: FakeRegistry, pauses: Pauses, answer: str, kind: type, words: str
) -> None:
    fake.next_answers(answer)

    with pytest.raises(SchemaRegistryError, match=words) as error:
        client_of(fake.url, pauses).by_id(7)
    assert type(error.value) is kind
    assert (len(fake.asked), pauses.taken) == (1, [])


def test_an_incompatible_schema_is_refused_with_the_registrys_reason(fake: FakeRegistry) -> None:
    fake.register("orders-value", '"string"')
    fake.frozen.add("orders-value")

    with pytest.raises(IncompatibleSchemaError, match="is incompatible with orders-value"):
        client_of(fake.url).register("orders-value", Schema('"long"'))


def test_an_invalid_schema_is_refused_with_the_registrys_reason(fake: FakeRegistry) -> None:
    with pytest.raises(SchemaRegistryError, match="is an invalid Avro schema"):
        client_of(fake.url).register("orders-value", Schema("no schema"))


def test_a_reference_that_is_not_there_is_named(fake: FakeRegistry) -> None:
    fake.register("orders-value", '["A"]', references=[{"name": "A", "subject": "a", "version": 2}])

    with pytest.raises(SchemaNotFoundError, match="asked for version 2 of subject 'a'"):
        client_of(fake.url).by_id(1)


@pytest.mark.parametrize("by", ["id", "version", "latest"])
def test_a_reference_of_version_minus_1_is_to_the_latest(fake: FakeRegistry, by: str) -> None:
    """So do build tools send a reference without a version, and registries keep it."""
    money = {"name": "Money", "subject": "money", "version": -1}
    fake.register("money", '{"type": "fixed", "name": "Money", "size": 1}')
    fake.register("money", '{"type": "fixed", "name": "Money", "size": 2}')
    order = fake.register("order", '["null", "Money"]', references=[money])
    client = client_of(fake.url)

    found = (
        client.by_id(order)
        if by == "id"
        else client.version("order", 1 if by == "version" else "latest")
    )
    assert [one.text for one in found.referenced] == [
        '{"type": "fixed", "name": "Money", "size": 2}'
    ]
    assert fake.asked[-1] == "GET /subjects/money/versions/latest"
    assert found.may_change
    fake.delete("money", 2)
    assert client.by_id(order).referenced[0].text == '{"type": "fixed", "name": "Money", "size": 1}'


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"basic_auth_user_info": f"user:{PASSWORD}"}, id="user info"),
        pytest.param(
            {"basic_auth_user_info": "user", "basic_auth_password": PASSWORD}, id="password"
        ),
        pytest.param({"url_user": f"user:{PASSWORD.replace(':', '%3A')}"}, id="URL"),
    ],
)
def test_user_and_password_are_sent(given: dict[str, str]) -> None:
    user = given.pop("url_user", "")
    with FakeRegistry(user_info=f"user:{PASSWORD}") as fake:
        fake.register("orders-value", '"string"')
        url = fake.url.replace("//", f"//{user}@") if user else fake.url

        assert client_of(url, **given).by_id(1).schema == TEXT


def test_a_token_is_sent() -> None:
    with FakeRegistry(token=TOKEN) as fake:
        fake.register("orders-value", '"string"')

        assert client_of(fake.url, bearer_auth_token=TOKEN).by_id(1).schema == TEXT


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"basic_auth_user_info": f"user:{PASSWORD}"}, "basic.auth.user.info"),
        ({"bearer_auth_token": TOKEN}, "bearer.auth.token"),
    ],
)
def test_refused_credentials_name_their_option(given: dict[str, str], option: str) -> None:
    with (
        FakeRegistry(user_info="another:user") as fake,
        pytest.raises(SchemaRegistryError) as error,
    ):
        client_of(fake.url, **given).by_id(1)

    assert f"schema.registry.{option}" in str(error.value)


@pytest.mark.parametrize("answer", ["400", "401", "500", "redirect", "html", "cut", "odd"])
@pytest.mark.parametrize(
    "given",
    [
        {"basic_auth_user_info": f"user:{PASSWORD}"},
        {"bearer_auth_token": TOKEN},
        {},
    ],
    ids=["user info", "token", "URL"],
)
def test_no_text_has_a_secret_even_if_the_registry_repeats_it(
    fake: FakeRegistry,
    pauses: Pauses,
    caplog: pytest.LogCaptureFixture,
    answer: str,
    given: dict[str, str],
) -> None:
    caplog.set_level(logging.DEBUG)
    fake.next_answers(answer, times=1000)
    url = fake.url if given else fake.url.replace("//", f"//user:{PASSWORD.replace(':', '%3A')}@")
    client = client_of(url, pauses, **given)

    with pytest.raises(SchemaRegistryError) as error:
        client.by_id(1)
    sent = fake.headers[0]["Authorization"].partition(" ")[2]
    texts = [str(error.value), repr(error.value), caplog.text, client.name]
    texts.append(repr(options_of(url, **given)))
    for secret in (PASSWORD, PASSWORD.replace(":", "%3A"), TOKEN, sent):
        assert all(secret not in text for text in texts)


def test_tls_is_by_pem_options_and_a_wrong_authority_is_named(
    tmp_path: Path, pauses: Pauses
) -> None:
    authority, other = (Authority(tmp_path / name, name=name) for name in ("one", "other"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("registry", hosts=("127.0.0.1",)).both)
    with FakeRegistry(tls=context) as fake:
        fake.register("orders-value", '"string"')
        trusted = {"ssl_truststore_location": str(authority.certificate)}
        assert client_of(fake.url, **trusted).by_id(1).schema == TEXT

        with pytest.raises(SchemaRegistryError) as error:
            client_of(
                fake.url, pauses, ssl_truststore_certificates=other.certificate.read_text()
            ).by_id(1)
    assert "is not accepted" in str(error.value)
    assert "'schema.registry.ssl.truststore.location'" in str(error.value)
    assert pauses.taken == []


def test_a_certificate_of_another_name_is_accepted_only_if_names_are_not_checked(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("registry", hosts=("elsewhere",)).both)
    trusted = {"ssl_truststore_location": str(authority.certificate)}
    with FakeRegistry(tls=context) as fake:
        fake.register("orders-value", '"string"')
        with pytest.raises(SchemaRegistryError, match="is not accepted"):
            client_of(fake.url, **trusted).by_id(1)

        unchecked = {**trusted, "ssl_endpoint_identification_algorithm": ""}
        assert client_of(fake.url, **unchecked).by_id(1).schema == TEXT


def test_a_registry_that_speaks_no_tls_is_an_error_at_once(
    fake: FakeRegistry, pauses: Pauses
) -> None:
    with pytest.raises(SchemaRegistryError, match="look whether it speaks TLS"):
        client_of(fake.url.replace("http:", "https:"), pauses).by_id(1)
    assert pauses.taken == []


def test_a_file_of_certificates_that_is_not_there_is_named_by_its_option() -> None:
    with pytest.raises(ConfigError) as error:
        client_of("https://127.0.0.1:1", ssl_truststore_location="/nowhere/ssl.key.pem")
    assert "'schema.registry.ssl.truststore.location' names '/nowhere/ssl.key.pem'" in str(
        error.value
    )


def test_a_forked_child_opens_connections_of_its_own(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = endpoint_of(fake.url, Pauses())
    parents = endpoint._own_pools()
    assert endpoint._own_pools() is parents

    monkeypatch.setattr(os, "getpid", lambda: -1)
    childs = endpoint._own_pools()
    assert childs is not parents
    assert endpoint._own_pools() is childs


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


ODD = 'Zürich-"4711"&more 😀'
ECHOES = {
    "as it is": ODD.encode(),
    "in HTML": html.escape(ODD).encode(),
    "in numbers of HTML": "".join(f"&#{ord(one)};" for one in ODD).encode(),
    "in JSON": json.dumps({"password": ODD}).encode(),
    "in JSON in HTML": html.escape(json.dumps({"password": ODD})).encode(),
    "in a URL": quote(ODD).encode(),
    "in a form": quote_plus(ODD).encode(),
    "in Latin-1": ODD[:-2].encode("latin-1"),
    "twice UTF-8": ODD.encode().decode("latin-1").encode(),
}


@pytest.mark.parametrize("where", ["body", "status line"])
@pytest.mark.parametrize("form", ECHOES)
def test_a_password_that_is_echoed_in_another_form_is_hidden(form: str, where: str) -> None:
    echo = b"no " + ECHOES[form]
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(echo), echo)
    if where == "status line":
        answer = b"HTTP/1.1 401 %s\r\nContent-Length: 0\r\n\r\n" % echo
    password = ODD[:-2] if form == "in Latin-1" else ODD

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = answering(listener, answer)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(SchemaRegistryError) as told:
            client_of(url, basic_auth_user_info=f"user:{password}").by_id(1)
        thread.join()
    assert "4711" not in str(told.value)
    assert "&#52;" not in str(told.value)
    assert "[hidden]" in str(told.value)
