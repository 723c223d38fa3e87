"""Peers that break the rules of TLS and SASL, and token endpoints that do: a client ends in time, with an error.

KBATCH_FUZZ_ROUNDS   number of rounds of the test with random damage; KBATCH_FUZZ_FIRST the first of them
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark_kbatch.errors import (
    ConfigError,
    DisconnectedError,
    KBatchError,
    RequestTimedOutError,
    SaslAuthenticationError,
    SslAuthenticationError,
)
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.wire.connection import ConnectionConfig
from spark_kbatch.wire.connections import Connections, Node, State
from spark_kbatch.wire.oauth import TokenSource
from spark_kbatch.wire.protocol import (
    SUPPORTED,
    ApiKey,
    MetadataRequest,
    Request,
    SaslAuthenticateResponse,
)
from tests.support import draws, fuzz_rounds
from tests.support.certificates import LOOPBACK, Authority
from tests.support.dripping import PARTS, Dripping
from tests.support.hostile_peers import (
    DAMAGES,
    Damage,
    Meddler,
    Peer,
    any_damage,
    http_request,
    leaves_nothing,
    refusal_of,
)
from tests.support.sasl_servers import PASSWORD, USER, SaslAnswers
from tests.support.wire_servers import LoopbackServer, metadata_body

METADATA = (ApiKey.METADATA, MetadataRequest(topics=[]))
LONG_NAME = "a-cluster-" * 3000  # so that an answer has several records of TLS
RECORD_OF_JUNK = b"\x17\x03\x03\0\x30" + 48 * b"j"
TIMEOUT_MS = 700
IN_TIME_S = 5.0
LOGIN = f'org.apache.kafka.AnyLoginModule required username="{USER}" password="{PASSWORD}";'
CLIENT_ID, CLIENT_SECRET = "the-client", "the-secret-of-the-client"
OAUTH_LOGIN = f'org.apache.kafka.OAuthBearerLoginModule required clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}";'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server", hosts=LOOPBACK).both)
    return context


@pytest.fixture(scope="module")
def broker(tls: ssl.SSLContext) -> Iterator[LoopbackServer]:
    answers = SaslAnswers(lambda _: metadata_body(LONG_NAME))
    with LoopbackServer(answers, tls=tls) as server:
        yield server


def client(**options: Any) -> Connections:
    keys = {key.replace("_", "."): str(value) for key, value in options.items()}
    given = {"bootstrap.servers": "127.0.0.1:1", **keys}
    config = ConnectionConfig(
        request_timeout_ms=TIMEOUT_MS, socket_connection_setup_timeout_ms=TIMEOUT_MS
    )
    return Connections(config, security=parse_cluster_options(given).security)


def over_tls(authority: Authority, **options: Any) -> Connections:
    given = {"security_protocol": "SSL", "ssl_truststore_location": authority.certificate}
    return client(**given | options)


def with_sasl(mechanism: str, jaas: str = LOGIN, **options: Any) -> Connections:
    return client(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_jaas_config=jaas, **options
    )  # fmt: skip


def first_error(connections: Connections, node: Node) -> KBatchError | None:
    """Return why the first connection failed; None if its request was answered."""
    ended: list[KBatchError | None] = []
    until = time.monotonic() + 2 * IN_TIME_S
    while not ended:
        assert time.monotonic() < until
        state = connections.state(node)
        if state is State.READY and not connections.in_flight_count():
            connections.send(node, *METADATA, lambda _, error: ended.append(error))
        elif state is State.DISCONNECTED and (error := connections.last_error(node)):
            return error
        elif state is State.DISCONNECTED:
            connections.ready(node)
        connections.poll(TIMEOUT_MS)
    return ended[0]


class TestDamagedTls:
    """A network that damages what the broker sends."""

    @pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
    def connections(
        self, authority: Authority, request: pytest.FixtureRequest
    ) -> Callable[[], Connections]:
        def connections() -> Connections:
            return over_tls(
                authority,
                security_protocol="SASL_SSL",
                ssl_enabled_protocols=request.param,
                sasl_mechanism="SCRAM-SHA-256",
                sasl_jaas_config=LOGIN,
            )

        return connections

    @pytest.mark.parametrize(
        "rounds",
        [
            fuzz_rounds.ROUNDS // 5,
            pytest.param(draws.many(fuzz_rounds.ROUNDS), marks=pytest.mark.slow),
        ],
        ids=["few", "many"],
    )
    def test_of_any_kind_at_any_place_ends_in_an_answer_or_an_error_in_time(
        self, broker: LoopbackServer, connections: Callable[[], Connections], rounds: int
    ) -> None:
        with Meddler(broker.node) as meddler, connections() as client:
            assert first_error(client, meddler.node) is None
            size_in_bytes = meddler.passed

        def attack(random: Random) -> None:
            damage = any_damage(random, size_in_bytes)
            with leaves_nothing(), Meddler(broker.node, damage) as meddler, connections() as client:
                error = refusal_of(
                    lambda: raise_if_any(first_error(client, meddler.node)),
                    within_s=IN_TIME_S,
                    secrets=[PASSWORD],
                )
                expected = (DisconnectedError, RequestTimedOutError, SslAuthenticationError)
                assert error is None or isinstance(error, expected), damage
                if damage.what not in ("trickle", "repeat"):  # of what follows the answer, perhaps
                    assert error is not None, damage

        fuzz_rounds.for_each_round("tls", attack, rounds=rounds)

    @pytest.mark.parametrize("what", sorted({*DAMAGES} - {"repeat", "trickle"}))
    def test_after_the_handshake_is_a_lost_connection_which_is_made_again(
        self, broker: LoopbackServer, connections: Callable[[], Connections], what: str
    ) -> None:
        with Meddler(broker.node) as meddler, connections() as client:
            assert first_error(client, meddler.node) is None
            size_in_bytes = meddler.passed
            client.disconnect(meddler.node)
            meddler.damage = Damage(what, size_in_bytes - 20_000, RECORD_OF_JUNK)
            error = refusal_of(
                lambda: client.request(meddler.node, *METADATA, timeout_ms=TIMEOUT_MS),
                within_s=IN_TIME_S,
            )
            assert isinstance(error, (DisconnectedError, RequestTimedOutError)), error
            assert client.refusal(meddler.node) is None
            meddler.damage = None
            answer = client.request(meddler.node, *METADATA, timeout_ms=10_000)
            assert answer.cluster_id == LONG_NAME


def raise_if_any(error: KBatchError | None) -> None:
    if error is not None:
        raise error


def test_answer_that_arrived_counts_though_what_follows_it_is_damaged(
    authority: Authority, tls: ssl.SSLContext
) -> None:
    def start(connections: Connections) -> list[KBatchError | None]:
        """Send a request on a new connection; return the list that its error is added to."""
        connections.disconnect(meddler.node)
        while not connections.ready(meddler.node):
            connections.poll(TIMEOUT_MS)
        ended: list[KBatchError | None] = []
        connections.send(meddler.node, *METADATA, lambda _, error: ended.append(error))
        return ended

    def end(connections: Connections, ended: list[KBatchError | None]) -> None:
        while not ended:
            connections.poll(TIMEOUT_MS)
        assert ended == [None]

    asked = threading.Semaphore(0)

    def answer(request: Request) -> Any:
        assert asked.acquire(timeout=10)
        return metadata_body()

    with (
        LoopbackServer(answer, tls=tls) as server,
        Meddler(server.node) as meddler,
        over_tls(authority, ssl_enabled_protocols="TLSv1.2") as connections,
    ):
        ended = start(connections)
        before = meddler.passed
        asked.release()
        end(connections, ended)
        size_in_bytes = meddler.passed - before

        ended = start(connections)
        meddler.damage = Damage("insert", meddler.passed + size_in_bytes, RECORD_OF_JUNK)
        asked.release()
        time.sleep(0.5)  # until both are there
        end(connections, ended)


GARBAGE = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeros": bytes(100),
    "a record above the maximum": b"\x16\x03\x03\xff\xff" + bytes(70_000),
    "a record without content": b"\x16\x03\x03\0\0" * 1000,
    "endless warnings": b"\x15\x03\x03\0\2\1\x5a" * 100_000,
    "endless changes of the cipher": b"\x14\x03\x03\0\1\1" * 100_000,
    "the end of TLS": b"\x15\x03\x03\0\2\1\0",
    "an internal error": b"\x15\x03\x03\0\2\2\x50",
    "half of a record": b"\x16\x03\x03\1\0\2",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_place_of_a_handshake_is_an_error_in_time(
    authority: Authority, garbage: bytes
) -> None:
    def run(sock: socket.socket) -> None:
        sock.recv(1)
        sock.sendall(garbage)
        sock.recv(100_000)

    with leaves_nothing(), Peer(run) as peer, over_tls(authority) as connections:
        error = refusal_of(
            lambda: raise_if_any(first_error(connections, peer.node)), within_s=IN_TIME_S
        )
        assert isinstance(error, (SslAuthenticationError, DisconnectedError))
        assert "cipher suite" not in str(error)


def test_broker_that_sends_answers_nobody_asked_for_is_left_at_once(
    authority: Authority, tls: ssl.SSLContext
) -> None:
    """Frames of no bytes, in records that end within a read: each would be an object."""
    sent = 0

    def run(sock: socket.socket) -> None:
        nonlocal sent
        with tls.wrap_socket(sock, server_side=True) as secure:
            secure.recv(1)
            while True:
                secure.sendall(bytes(16_000))
                sent += 16_000

    with leaves_nothing(), Peer(run) as peer, over_tls(authority) as connections:
        error = refusal_of(
            lambda: raise_if_any(first_error(connections, peer.node)), within_s=IN_TIME_S
        )
    assert isinstance(error, DisconnectedError)
    assert sent < 8 * 2**20


def test_server_that_announces_a_large_answer_before_any_login_is_left_at_once() -> None:
    def run(sock: socket.socket) -> None:
        sock.recv(1)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        sock.recv(100_000)

    with Peer(run) as peer, client() as connections:
        started = time.monotonic()
        error = first_error(connections, peer.node)
        assert time.monotonic() - started < TIMEOUT_MS / 1000
    assert "security.protocol=PLAINTEXT" in str(error)


def test_handshake_that_trickles_is_given_up(authority: Authority) -> None:
    def run(sock: socket.socket) -> None:
        sock.recv(1)
        for one in b"\x16\x03\x03\x0f\xff\x02\0\x0f\xfb" + bytes(1000):
            sock.sendall(bytes([one]))
            time.sleep(0.02)

    with leaves_nothing(), Peer(run) as peer, over_tls(authority) as connections:
        error = refusal_of(
            lambda: raise_if_any(first_error(connections, peer.node)), within_s=IN_TIME_S
        )
    assert "set up in time" in str(error)


def test_truststore_with_several_certificates_trusts_each(
    authority: Authority, tls: ssl.SSLContext, tmp_path: Path
) -> None:
    others = [Authority(tmp_path / name, name=name) for name in ("first", "second")]
    texts = [one.certificate.read_text() for one in (others[0], authority, others[1])]
    with LoopbackServer(tls=tls) as server:
        for text in ("\n".join(texts), " ".join(texts).replace("\n", "\\n")):
            given = {"ssl_truststore_location": "", "ssl_truststore_certificates": text}
            with over_tls(authority, **given) as connections:
                assert first_error(connections, server.node) is None
        given["ssl_truststore_certificates"] = texts[0] + texts[2]
        with over_tls(authority, **given) as connections:
            assert isinstance(first_error(connections, server.node), SslAuthenticationError)


def signature_in(message: bytes) -> bytes:
    """Return the signature in the last message of a SCRAM server; other messages as they are."""
    fields = dict(one.partition(b"=")[::2] for one in message.split(b","))
    with contextlib.suppress(ValueError):
        return base64.b64decode(fields.get(b"v", b"")) or message
    return message


class TestSasl:
    """A server that breaks the rules of an exchange."""

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
    @pytest.mark.parametrize(
        "challenge",
        [b"", b"\xff\xfe", b"v=", b"e=other-error", b"r=,s=,i=1", b"\0" * 500_000],
        ids=["empty", "not text", "no signature", "an error", "another nonce", "large"],
    )
    def test_with_the_same_challenge_for_ever_is_refused(
        self, mechanism: str, challenge: bytes
    ) -> None:
        jaas = LOGIN
        if mechanism == "OAUTHBEARER":
            jaas = 'a.Module required unsecuredLoginStringClaim_sub="alice";'
        rule = SaslAnswers()

        def answer(request: Request) -> Any:
            if request.api_key != ApiKey.SASL_AUTHENTICATE:
                return rule(request)
            return SaslAuthenticateResponse(
                error_code=0, error_message=None, auth_bytes=challenge, session_lifetime_ms=0
            )

        with leaves_nothing(), LoopbackServer(answer) as server:
            with with_sasl(mechanism, jaas) as connections:
                error = refusal_of(
                    lambda: raise_if_any(first_error(connections, server.node)),
                    within_s=IN_TIME_S,
                    secrets=[PASSWORD],
                )
        if challenge or mechanism.startswith("SCRAM"):
            assert isinstance(error, SaslAuthenticationError)

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    def test_with_damaged_steps_is_refused(self, mechanism: str) -> None:
        def attack(random: Random) -> None:
            rule, is_touched, is_changed = SaslAnswers(), False, False

            def answer(request: Request) -> Any:
                nonlocal is_touched, is_changed
                body = rule(request)
                if request.api_key == ApiKey.SASL_AUTHENTICATE and random.random() < 0.6:
                    given = bytes(body.auth_bytes)
                    body.auth_bytes = fuzz_rounds.mutated(random, given)
                    is_touched |= body.auth_bytes != given
                    is_changed |= signature_in(body.auth_bytes) != signature_in(given)
                return body

            with LoopbackServer(answer) as server, with_sasl(mechanism) as connections:
                error = refusal_of(
                    lambda: raise_if_any(first_error(connections, server.node)),
                    within_s=10,  # the server may name many iterations
                    secrets=[PASSWORD],
                )
            assert error is None or isinstance(error, SaslAuthenticationError)
            assert is_changed <= (error is not None) <= is_touched

        fuzz_rounds.for_each_round(mechanism, attack, rounds=fuzz_rounds.ROUNDS // 3)

    def test_that_has_no_request_for_its_steps_does_not_use_sasl(self) -> None:
        offered = {key: SUPPORTED[key] for key in SUPPORTED if key != ApiKey.SASL_AUTHENTICATE}
        with LoopbackServer(SaslAnswers(), offered=offered) as server:
            with with_sasl("PLAIN") as connections:
                error = first_error(connections, server.node)
        assert isinstance(error, SaslAuthenticationError)
        assert "does not use SASL" in str(error)

    def test_that_says_much_is_quoted_in_part_and_safe_to_print(self) -> None:
        rule = SaslAnswers()

        def answer(request: Request) -> Any:
            if request.api_key != ApiKey.SASL_AUTHENTICATE:
                return rule(request)
            return SaslAuthenticateResponse(
                error_code=58,
                error_message=f"{PASSWORD}\n\x1b[31m" + "\u202eno" * 5000,
                auth_bytes=b"",
                session_lifetime_ms=0,
            )

        with LoopbackServer(answer) as server, with_sasl("PLAIN") as connections:
            error = refusal_of(
                lambda: raise_if_any(first_error(connections, server.node)),
                within_s=IN_TIME_S,
                secrets=[PASSWORD],
            )
        assert "[hidden]" in str(error)

    @pytest.mark.parametrize("lifetime_ms", [-(2**63), -1, 1, 2**63 - 1])
    def test_that_limits_sessions_oddly_answers_requests(self, lifetime_ms: int) -> None:
        answers = SaslAnswers(session_lifetime_ms=lifetime_ms)
        with LoopbackServer(answers) as server, with_sasl("PLAIN") as connections:
            for _ in range(3):
                answer = connections.request(server.node, *METADATA, timeout_ms=5000)
                assert answer.cluster_id == "a-cluster"
                time.sleep(0.06)
            assert server.accepted == 1


class TestTokenEndpoint:
    """An identity provider that is slow, wrong or hostile."""

    @staticmethod
    def source(url: str, **options: str) -> TokenSource:
        given = {
            "bootstrap.servers": "127.0.0.1:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": OAUTH_LOGIN,
            "sasl.oauthbearer.token.endpoint.url": url,
            **options,
        }
        return TokenSource(parse_cluster_options(given).security)

    def error_of(self, url: str, *, timeout_s: float = 1.0) -> KBatchError | None:
        return refusal_of(
            lambda: self.source(url).token(timeout_s),
            within_s=timeout_s + 1,
            secrets=[CLIENT_SECRET, "a-password"],
        )

    def answered(self, answer: bytes, *, timeout_s: float = 1.0) -> KBatchError | None:
        """Return the error for an endpoint that answers so."""

        def run(sock: socket.socket) -> None:
            http_request(sock)
            sock.sendall(answer)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(100_000):
                pass

        with leaves_nothing(), Peer(run) as peer:
            return self.error_of(f"http://{peer.address}/token?key=a-password", timeout_s=timeout_s)

    @pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
    def test_that_redirects_gets_no_secret_sent_elsewhere(self, code: int) -> None:
        with Peer(lambda sock: sock.recv(100_000)) as other:
            for target in (f"http://{other.address}/", "https://a.example/", "file:///etc/passwd"):
                answer = f"HTTP/1.1 {code} Moved\r\nLocation: {target}\r\n\r\n".encode()
                error = self.answered(answer)
                assert isinstance(error, SaslAuthenticationError)
                assert f"it answered {code} Moved, a redirect" in str(error)
            assert other.accepted == 0

    @pytest.mark.parametrize(
        "echo",
        [
            CLIENT_SECRET, CLIENT_SECRET.replace("e", "%65"), CLIENT_SECRET.replace("e", "\\u0065"),
            CLIENT_SECRET.replace("-", "&#45;"),
        ],
        ids=["as it is", "URL", "JSON", "HTML"],
    )  # fmt: skip
    def test_that_repeats_the_secret_has_it_hidden(self, echo: str) -> None:
        for start in (b"HTTP/1.1 401 no ", b"HTTP/1.1 503 no ", b"nothing but "):
            error = self.answered(start + echo.encode() + b"\r\n\r\n")
            assert error is not None
            assert "[hidden]" in str(error)
            assert echo not in str(error)

    @pytest.mark.parametrize("part", PARTS)
    def test_that_answers_in_drops_is_given_up_in_time(self, part: str) -> None:
        with leaves_nothing(), Dripping(part) as server:
            error = self.error_of(f"{server.url}/token", timeout_s=0.3)
        assert isinstance(error, DisconnectedError)
        assert "timed out" in str(error)
        assert server.asked == 1

    @pytest.mark.parametrize(
        "head",
        [
            b"\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
            b"Content-Length: 10000000000\r\n\r\n",
        ],
        ids=["until it closes", "a chunk below zero", "announced"],
    )
    def test_that_sends_without_end_is_left(self, head: bytes) -> None:
        sent = 0

        def run(sock: socket.socket) -> None:
            nonlocal sent
            http_request(sock)
            sock.sendall(b"HTTP/1.1 200 OK\r\n" + head)
            while True:
                sock.sendall(bytes(65_536))
                sent += 65_536

        with leaves_nothing(), Peer(run) as peer:
            error = self.error_of(f"http://{peer.address}/token", timeout_s=5)
        assert isinstance(error, DisconnectedError)
        assert "longer than" in str(error)
        assert sent < 16 * 2**20

    @pytest.mark.parametrize(
        "body",
        [
            "", "null", "[]", '"a-token"', "<html>", "[" * 100_000, '{"a":' * 100_000, '{"access_token": null}',
            '{"access_token": 7}', '{"access_token": ["a"]}', '{"access_token": ""}', '{"access_token": "a b"}',
            '{"access_token": "a\\nb"}', '{"access_token": "a\\u0001auth=b"}', '{"access_token": "\\ud800"}',
            '{"access_token": "\u00e9"}', '{"error": "invalid_client"}',
        ],
    )  # fmt: skip
    def test_that_gives_no_token_is_refused(self, body: str) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + body.encode()
        error = self.answered(answer)
        assert isinstance(error, SaslAuthenticationError)
        assert "access_token" in str(error)
        assert "token.endpoint.url" in str(error)

    @pytest.mark.parametrize(
        ("expires_in", "asked"),
        [
            ("60", 1), ('"60"', 1), ("60.5", 1), ("1e300", 1), ("0", 2), ("-5", 2), ("null", 2), ("NaN", 2),
            ('"soon"', 2), ("[]", 2), ("9" * 400, 2),
        ],
    )  # fmt: skip
    def test_whose_token_has_an_odd_lifetime_is_asked_again_where_it_is_none(
        self, expires_in: str, asked: int
    ) -> None:
        def run(sock: socket.socket) -> None:
            http_request(sock)
            body = f'{{"access_token": "a.b-c_d~e+f/g==", "expires_in": {expires_in}}}'
            sock.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body.encode())

        with Peer(run) as peer:
            source = self.source(f"http://{peer.address}/")
            assert [source.token() for _ in range(2)] == ["a.b-c_d~e+f/g=="] * 2
            assert peer.accepted == asked
        assert source._until_s <= time.monotonic() + 86_400

    @pytest.mark.parametrize(
        ("code", "is_final"),
        [
            (400, True),
            (401, True),
            (404, True),
            (408, False),
            (429, False),
            (500, False),
            (503, False),
        ],
    )
    def test_that_fails_is_asked_again_unless_it_refused_the_client(
        self, code: int, is_final: bool
    ) -> None:
        error = self.answered(f"HTTP/1.1 {code} Why\x1b[31m{'y' * 5000}\r\n\r\n".encode())
        assert isinstance(error, SaslAuthenticationError if is_final else DisconnectedError)
        assert f"it answered {code} Why" in str(error)

    @pytest.mark.parametrize(
        "answer",
        [b"", b"\0" * 100, b"HTTP/9.9 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000,
         b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000, b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
         b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}"],
        ids=["closed", "zeros", "no status", "headers", "a long header", "a part", "a chunk below zero"],
    )  # fmt: skip
    def test_that_does_not_speak_http_is_a_lost_connection(self, answer: bytes) -> None:
        assert isinstance(self.answered(answer), DisconnectedError)

    @pytest.mark.parametrize(
        "url",
        ["ftp://host/token", "host/token", "https://", "http://[::1", "http://a..b/", "http://host:port/",
         "https://me:a-password@host/", "http://host/a token?key=a-password"],
    )  # fmt: skip
    def test_with_a_url_that_cannot_be_is_a_wrong_option(self, url: str) -> None:
        error = self.error_of(url)
        assert isinstance(error, ConfigError)
        assert "token.endpoint.url" in str(error)

    def test_of_an_unknown_authority_is_refused(self, tls: ssl.SSLContext) -> None:
        def run(sock: socket.socket) -> None:
            tls.wrap_socket(sock, server_side=True).recv(1)

        with leaves_nothing(), Peer(run) as peer:
            error = self.error_of(f"https://{peer.address}/token")
        assert isinstance(error, SaslAuthenticationError)
        assert "certificate" in str(error)

    def test_behind_a_proxy_of_the_environment_is_asked_through_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def run(sock: socket.socket) -> None:
            asked.append(http_request(sock).split(b"\r\n")[0])
            sock.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"access_token": "of-the-proxy"}')

        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with Peer(run) as proxy:
            monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
            assert self.source("http://a.example/token").token() == "of-the-proxy"
            monkeypatch.setenv("https_proxy", f"http://{proxy.address}")
            error = self.error_of("https://a.example/token")
        assert asked[0] == b"POST http://a.example/token HTTP/1.1"
        assert asked[1].startswith(b"CONNECT a.example:443 ")
        assert isinstance(error, DisconnectedError)

    def test_that_is_silent_holds_each_client_no_longer_than_its_request_timeout(self) -> None:
        def run(sock: socket.socket) -> None:
            while sock.recv(100_000):
                pass

        with Peer(run) as endpoint, LoopbackServer(SaslAnswers()) as server:
            url = f"http://{endpoint.address}/silent"
            with with_sasl(
                "OAUTHBEARER", OAUTH_LOGIN, sasl_oauthbearer_token_endpoint_url=url
            ) as connections:
                error = refusal_of(
                    lambda: raise_if_any(first_error(connections, server.node)),
                    within_s=TIMEOUT_MS / 1000 + 0.5,
                    secrets=[CLIENT_SECRET],
                )
        assert isinstance(error, DisconnectedError)


def test_token_of_a_file_with_characters_that_none_has_is_a_wrong_option(tmp_path: Path) -> None:
    for content in ("", "a b", "a\x01auth=b"):
        (tmp_path / "token").write_text(content)
        source = TestTokenEndpoint.source((tmp_path / "token").as_uri())
        with pytest.raises(ConfigError, match=r"token\.endpoint\.url"):
            source.token()


def test_forked_child_can_get_a_token_though_another_thread_was_getting_one() -> None:
    source = TestTokenEndpoint.source("http://127.0.0.1:9/token")
    with source._lock:
        child = os.fork()
        if not child:
            code = 1
            try:
                source.token(5)
            except DisconnectedError as error:
                code = 0 if "another thread" not in str(error) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
