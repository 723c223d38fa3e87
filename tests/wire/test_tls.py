"""TLS of a client's connections: what is accepted, and how each refusal is explained."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark_kbatch.errors import ConfigError, SslAuthenticationError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.wire.channel import Channel
from spark_kbatch.wire.connection import ConnectionConfig
from spark_kbatch.wire.connections import Connections, Node, State
from spark_kbatch.wire.protocol import ApiKey, FetchRequest, MetadataRequest, Request
from spark_kbatch.wire.records import produce_request
from spark_kbatch.wire.tls import TlsSocket, tls_context
from tests.support.certificates import LOOPBACK, Authority
from tests.support.wire_servers import LoopbackServer, fetch_answer, metadata_body

METADATA = (ApiKey.METADATA, MetadataRequest(topics=[]))
QUICKLY_S = 5
PASSWORD = "key-password-of-the-test"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), password=PASSWORD)


def server_context(
    authority: Authority,
    *hosts: str,
    days: tuple[float, float] = (-1, 1),
    clients: Authority | None = None,
) -> ssl.SSLContext:
    """Return the settings of a server, which demands certificates of `clients`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server", hosts=hosts or LOOPBACK, days=days).both)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.certificate)
    return context


def client_certificate(authority: Authority, *, encrypted: bool = False) -> tuple[str, str, Path]:
    """Return key and certificate as text, and a file with both."""
    issued = authority.issue("client")
    key = (issued.encrypted_key if encrypted else issued.key).read_text()
    both = issued.both.with_name("client-store.pem")
    both.write_text(key + issued.certificate.read_text())
    return key, issued.certificate.read_text(), both


def secured(**options: Any) -> Connections:
    keys = {key.replace("_", "."): str(value) for key, value in options.items()}
    given = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", **keys}
    return Connections(security=parse_cluster_options(given).security)


def answered(server: LoopbackServer, host: str = "127.0.0.1", **options: Any) -> Any:
    with secured(**options) as connections:
        node = Node(1, host, server.node.port)
        return connections.request(node, *METADATA, timeout_ms=20_000).cluster_id


@pytest.fixture
def server(authority: Authority) -> Iterator[LoopbackServer]:
    with LoopbackServer(tls=server_context(authority)) as server:
        yield server


@pytest.mark.parametrize("protocols", ["TLSv1.2", "TLSv1.3", "TLSv1.2,TLSv1.3"])
def test_server_with_a_certificate_of_a_given_authority_is_accepted(
    server: LoopbackServer, authority: Authority, protocols: str
) -> None:
    options = {"ssl_truststore_location": authority.certificate, "ssl_enabled_protocols": protocols}

    assert answered(server, **options) == "a-cluster"
    assert answered(server, "localhost", **options) == "a-cluster"


def test_large_messages_go_both_ways_over_tls(authority: Authority) -> None:
    records = os.urandom(3_000_000)

    def answer(request: Request) -> Any:
        if request.api_key == ApiKey.METADATA:
            return metadata_body()
        assert request.api_key == ApiKey.FETCH
        return fetch_answer(records)

    def received(request: Request) -> Any:
        return None if request.api_key == ApiKey.PRODUCE else answer(request)

    with (
        LoopbackServer(received, tls=server_context(authority)) as server,
        secured(ssl_truststore_certificates=authority.certificate.read_text()) as connections,
    ):
        for _ in range(2):
            fetched = connections.request(server.node, ApiKey.FETCH, FetchRequest())
            assert bytes(fetched.responses[0].partitions[0].records) == records
            body = produce_request(0, 100, {TopicPartition("t", 0): records})
            assert connections.request(server.node, ApiKey.PRODUCE, body) is None
        assert connections.request(server.node, *METADATA).cluster_id == "a-cluster"
        assert server.accepted == 1


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_frames_of_many_pieces_pass_through_small_buffers(
    authority: Authority, protocol: str
) -> None:
    """Each side has so little room that most writes and reads stop in the middle."""
    random = Random(protocol)
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    echoing = threading.Thread(target=echo, args=(server_context(authority), theirs))
    echoing.start()
    ours.setblocking(False)
    options = {"ssl.truststore.location": str(authority.certificate), "security.protocol": "SSL"}
    security = parse_cluster_options({"bootstrap.servers": "h:1", **options}).security
    security = dataclasses.replace(security, ssl_enabled_protocols=(protocol,))
    tls = TlsSocket(ours, tls_context(security), "localhost", "localhost:1")
    while not tls.handshake():
        wait_for(tls, writable=tls.read_waits_for_write)
    channel = Channel(tls, "localhost:1")
    try:
        for _ in range(6):
            sizes = [
                random.choice((0, 1, 40, 5000, 60_000)) for _ in range(random.randrange(1, 40))
            ]
            pieces = [random.randbytes(size) for size in sizes]
            channel.start(list(pieces))
            frames: list[memoryview] = []
            while channel.is_sending or not frames:
                channel.write()
                frames += channel.read()
                if channel.is_sending or not frames:
                    wait_for(tls, writable=channel.wants_write)
            assert [bytes(one) for one in frames] == [b"".join(pieces)]
    finally:
        channel.close()
        echoing.join()


def wait_for(tls: TlsSocket, *, writable: bool) -> None:
    assert any(select.select([tls], [tls] if writable else [], [], 10))


def echo(context: ssl.SSLContext, sock: socket.socket) -> None:
    with context.wrap_socket(sock, server_side=True) as tls, contextlib.suppress(OSError):
        while data := tls.recv(10_000):
            tls.sendall(data)


def test_server_that_never_answers_the_handshake_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = Node(1, *silent.getsockname())
        security = parse_cluster_options(
            {"bootstrap.servers": "h:1", "security.protocol": "SSL"}
        ).security
        config = ConnectionConfig(socket_connection_setup_timeout_ms=50)
        with Connections(config, security=security) as connections:
            connections.ready(node)
            while connections.state(node) is State.CONNECTING:
                connections.poll(1000)

            assert "set up in time" in str(connections.last_error(node))
            assert connections.refusal(node) is None


def test_forked_child_makes_its_own_connection_and_leaves_its_parents_alone(
    server: LoopbackServer, authority: Authority
) -> None:
    with secured(ssl_truststore_location=authority.certificate) as connections:
        assert connections.request(server.node, *METADATA)
        child = os.fork()
        if not child:
            found = ""
            try:
                found = connections.request(server.node, *METADATA).cluster_id
            finally:
                os._exit(0 if found == "a-cluster" else 1)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert connections.request(server.node, *METADATA).cluster_id == "a-cluster"
        assert server.accepted == 2


class TestClientCertificate:
    """A server that demands one."""

    @pytest.fixture
    def server(self, authority: Authority) -> Iterator[LoopbackServer]:
        context = server_context(authority, clients=authority)
        with LoopbackServer(tls=context) as server:
            yield server

    @pytest.mark.parametrize("password", ["", PASSWORD], ids=["plain", "encrypted"])
    @pytest.mark.parametrize("given", ["file", "text", "text in one line"])
    def test_it_is_sent(
        self, server: LoopbackServer, authority: Authority, given: str, password: str
    ) -> None:
        key, chain, path = client_certificate(authority, encrypted=bool(password))
        if given == "file":
            options = {"ssl_keystore_location": str(path)}
        else:
            if given == "text in one line":
                key, chain = key.replace("\n", " "), chain.replace("\n", " ")
            options = {"ssl_keystore_key": key, "ssl_keystore_certificate_chain": chain}

        assert (
            answered(
                server,
                ssl_truststore_location=authority.certificate,
                ssl_key_password=password,
                **options,
            )
            == "a-cluster"
        )

    @pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
    def test_missing_or_unknown_one_is_refused_at_once(
        self, server: LoopbackServer, authority: Authority, protocol: str, tmp_path: Path
    ) -> None:
        stranger = Authority(tmp_path).issue("client").both
        options = {
            "ssl_truststore_location": authority.certificate,
            "ssl_enabled_protocols": protocol,
        }
        for more in ({}, {"ssl_keystore_location": stranger}):
            started = time.monotonic()
            with pytest.raises(SslAuthenticationError, match=r"ssl\.keystore\.location"):
                answered(server, **options, **more)
            assert time.monotonic() - started < QUICKLY_S


class TestRefusedServer:
    """Its certificate, or that it has none."""

    def test_of_another_name(self, authority: Authority) -> None:
        with LoopbackServer(tls=server_context(authority, "elsewhere.example")) as server:
            with pytest.raises(
                SslAuthenticationError, match=r"not valid for '127.0.0.1'.*endpoint"
            ):
                answered(server, ssl_truststore_location=authority.certificate)
            assert (
                answered(
                    server,
                    ssl_truststore_location=authority.certificate,
                    ssl_endpoint_identification_algorithm="",
                )
                == "a-cluster"
            )

    def test_expired(self, authority: Authority) -> None:
        with LoopbackServer(tls=server_context(authority, days=(-2, -1))) as server:
            with pytest.raises(SslAuthenticationError, match="has expired"):
                answered(server, ssl_truststore_location=authority.certificate)

    def test_of_an_unknown_authority(self, server: LoopbackServer, tmp_path: Path) -> None:
        for options in ({"ssl_truststore_location": Authority(tmp_path).certificate}, {}):
            with pytest.raises(SslAuthenticationError, match=r"ssl\.truststore\.location"):
                answered(server, **options)

    def test_without_a_version_in_common(self, authority: Authority) -> None:
        context = server_context(authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with LoopbackServer(tls=context) as server:
            with pytest.raises(SslAuthenticationError, match=r"ssl\.enabled\.protocols"):
                answered(
                    server,
                    ssl_truststore_location=authority.certificate,
                    ssl_enabled_protocols="TLSv1.3",
                )


@pytest.mark.parametrize(
    ("suite", "taken"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ],
    ids=["IANA's name", "OpenSSL's name"],
)
def test_cipher_suites_are_limited(
    server: LoopbackServer, authority: Authority, suite: str, taken: str
) -> None:
    with secured(
        ssl_truststore_location=authority.certificate, ssl_cipher_suites=suite
    ) as connections:
        assert connections._tls_context is not None
        found = [one["name"] for one in connections._tls_context.get_ciphers()]
        assert [name for name in found if not name.startswith("TLS_")] == [taken]
        assert connections.request(server.node, *METADATA).cluster_id == "a-cluster"


class TestOptions:
    """Files and texts that cannot be used."""

    def test_missing_file_is_named_with_its_option(self) -> None:
        with pytest.raises(
            ConfigError, match=r"'ssl.truststore.location' names '/nowhere/ca.pem'.*read"
        ):
            secured(ssl_truststore_location="/nowhere/ca.pem")

    @pytest.mark.parametrize(
        "start", [b"\xfe\xed\xfe\xed\x00\x00\x00\x02", b"0\x82\x0a\x8e\x02\x01\x03"]
    )
    def test_java_store_under_any_name_is_refused_with_the_command_that_converts_it(
        self, tmp_path: Path, start: bytes
    ) -> None:
        store = tmp_path / "store.bin"
        store.write_bytes(start + bytes(100))
        for key in ("ssl_truststore_location", "ssl_keystore_location"):
            with pytest.raises(ConfigError, match="openssl pkcs12"):
                secured(**{key: store})

    @pytest.mark.parametrize(
        ("password", "wrong"),
        [("", "is not given"), ("a wrong password", "is wrong")],
        ids=["none", "wrong"],
    )
    @pytest.mark.parametrize("given", ["file", "text"])
    def test_encrypted_key_needs_its_password(
        self, authority: Authority, password: str, wrong: str, given: str
    ) -> None:
        key, chain, path = client_certificate(authority, encrypted=True)
        options = {"ssl_keystore_location": str(path)}
        if given == "text":
            options = {"ssl_keystore_key": key, "ssl_keystore_certificate_chain": chain}
        with pytest.raises(ConfigError, match=f"'ssl.key.password' {wrong}") as raised:
            secured(ssl_key_password=password, **options)
        assert "a wrong password" not in str(raised.value)

    def test_key_of_another_certificate_is_refused(self, authority: Authority) -> None:
        key, chain = client_certificate(authority)[0], client_certificate(authority)[1]
        with pytest.raises(ConfigError, match="does not belong to its certificate"):
            secured(ssl_keystore_key=key, ssl_keystore_certificate_chain=chain)

    def test_text_that_is_not_pem_is_refused_without_being_repeated(self) -> None:
        with pytest.raises(ConfigError, match="BEGIN") as raised:
            secured(ssl_keystore_key="my-secret-key", ssl_keystore_certificate_chain="x")
        assert "my-secret-key" not in str(raised.value)

    def test_given_key_leaves_no_file(
        self, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where files in memory do not exist, on macOS."""
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        key, chain, _ = client_certificate(authority)
        secured(ssl_keystore_key=key, ssl_keystore_certificate_chain=chain).close()

        assert list(tmp_path.iterdir()) == []
