"""The files of examples/server pass the checks of others, fit each other, and run a server that can be restarted.

`tests/interop` has more of them, with systemd's own program and an image that is built.
"""

from __future__ import annotations

import contextlib
import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from confluent_kafka import Consumer

from spark_kbatch.cli.main import cli
from spark_kbatch.server import server
from spark_kbatch.web import history, serving
from tests.support import server_files
from tests.support.commands import COMMANDS
from tests.support.server_files import replaced
from tests.support.server_processes import TOKEN, Sending, ServerProcess
from tests.support.waiting import until

RUNS = server_files.runs()


def tool(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name(name), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_hadolint_has_nothing_to_say_about_the_image() -> None:
    done = tool("hadolint", "--no-color", "--failure-threshold", "style", server_files.IMAGE)

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_the_manifest_follows_the_schemas_of_kubernetes(version: str) -> None:
    done = tool("kubernetes-validate", "--strict", "-k", version, server_files.MANIFEST)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed ") == len(server_files.objects())


def test_kubernetes_validate_refuses_a_word_that_kubernetes_has_not(tmp_path: Path) -> None:
    wrong = server_files.MANIFEST.read_text("utf-8").replace("runAsUser:", "runAsUsers:")
    (tmp_path / "wrong.yaml").write_text(wrong)

    assert tool("kubernetes-validate", "--strict", tmp_path / "wrong.yaml").returncode == 1


@pytest.mark.parametrize("how", RUNS)
def test_the_command_line_has_words_that_kbatch_serve_takes(how: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    places = {"%d": tmp_path, "/etc/kbatch": tmp_path, "$(NAMESPACE)": "default"}
    _, name, *words = replaced(RUNS[how].words, places)
    parent = click.Context(cli, info_name="kbatch", **cli.context_settings)

    context = COMMANDS[name].make_context(name, words, parent=parent)

    (of_pages,) = (one.default for one in COMMANDS["ui"].params if one.name == "listen")
    assert context.params["http"][1] == int(of_pages.rpartition(":")[2])
    assert context.params["listen"][1] == 9092


def test_all_pages_have_one_port_for_those_of_a_server() -> None:
    pages = [*server_files.FOLDER.iterdir(), *(server_files.FOLDER.parents[1] / "docs").glob("*.md")]  # fmt: skip
    found = {
        port
        for one in pages
        for port in re.findall(
            r"(?:--http \S+:|etl-7:|--listen 0\.0\.0\.0:)(\d+)", one.read_text("utf-8")
        )
    }

    assert found - {"9092"} == {"8088"}


def test_the_user_the_volume_and_the_ports_are_the_same_to_the_image_and_to_kubernetes() -> None:
    pod = server_files.objects()["StatefulSet"]["spec"]["template"]["spec"]
    one, rights = server_files.container(), pod["securityContext"]

    user = f"{rights['runAsUser']}:{rights['runAsGroup']}"
    assert server_files.instruction("USER") == user
    assert rights["fsGroup"] == rights["runAsGroup"]
    (volume,) = server_files.instruction("VOLUME").split()
    writable = [mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")]
    assert writable == [volume]
    claims = server_files.objects()["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert {claim["metadata"]["name"] for claim in claims} == {
        mount["name"] for mount in one["volumeMounts"] if mount["mountPath"] == volume
    }
    places = [*RUNS["in a container"].environment.values(), RUNS["in a container"].words[2]]
    assert [place for place in places if not Path(place).is_relative_to(volume)] == []
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    assert server_files.instruction("EXPOSE").split() == [str(port) for port in ports.values()]
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert one[kind]["httpGet"]["port"] == "http", kind


def test_the_objects_of_kubernetes_find_each_other() -> None:
    objects, one = server_files.objects(), server_files.container()
    service, policy = objects["Service"], objects["NetworkPolicy"]
    name, labels = service["metadata"]["name"], objects["StatefulSet"]["spec"]["template"]["metadata"]["labels"]  # fmt: skip

    assert objects["StatefulSet"]["spec"]["serviceName"] == name
    assert service["spec"]["selector"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert objects["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    named = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert named == [*ports]
    (port,) = service["spec"]["ports"]
    assert f"--advertise={name}.$(NAMESPACE).svc:{port['port']}" in one["args"]
    (secret,) = re.findall(r"create secret generic (\S+) --from-literal=token=", server_files.MANIFEST.read_text("utf-8"))  # fmt: skip
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    assert [volume["secret"]["secretName"] for volume in pod["volumes"]] == [secret]


@pytest.mark.parametrize("how", RUNS)
def test_the_time_to_stop_is_longer_than_the_server_takes(how: str) -> None:
    pools = len(vars(server._Pools()))
    of_pages = history._ENDS_WITHIN_S + serving._ENDS_WITHIN_S + 1
    of_server = server._ANSWERED_WITHIN_S + pools * server._POOL_ENDS_WITHIN_S

    assert RUNS[how].stop_s >= of_pages + of_server
    page = (server_files.FOLDER.parents[1] / "docs" / "running-a-server.md").read_text("utf-8")
    said = re.findall(r"That takes (\d+) seconds at most for clients, .*?, and (\d+) for the pages", page)  # fmt: skip
    assert [tuple(map(int, one)) for one in said] == [(of_server, of_pages)]


@contextlib.contextmanager
def prepared(how: str, folder: Path) -> Iterator[ServerProcess]:
    credentials = folder / "credentials"
    for made in (credentials, folder / "state", folder / "cache"):
        made.mkdir()
    (credentials / "token").write_text(f"{TOKEN}\n")
    places = {
        "/var/lib/kbatch": folder / "state", "%S/kbatch": folder / "state", "%C/kbatch": folder / "cache",
        "%d": credentials, "/etc/kbatch": credentials,
    }  # fmt: skip
    with ServerProcess(RUNS[how], folder / "log", places) as process:
        yield process


@pytest.mark.parametrize("how", RUNS)
def test_a_restart_loses_no_record_of_clients_that_try_again(how: str, tmp_path: Path) -> None:
    """A producer sends all the time, and a member of a group reads: each record once."""
    found: list[int] = []

    def read() -> int:
        found.extend(int(one.value() or b"") for one in consumer.consume(500, 0.1) if not one.error())  # fmt: skip
        return len(found)

    with prepared(how, tmp_path) as process:
        assert not process.is_ready()
        process.start()
        assert stat.S_IMODE((tmp_path / "state" / "cluster").stat().st_mode) == 0o700
        consumer = Consumer(
            {
                "bootstrap.servers": process.address, "group.id": "readers", "log_level": 0,
                "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 100,
                "error_cb": lambda _: None,
            }
        )  # fmt: skip
        sending = Sending(process.address)
        try:
            until(lambda: sending.acknowledged > 50, "records are acknowledged")
            consumer.subscribe(["events"])
            until(lambda: read() > 50, "records are read")
            assert process.stop() == 0
            assert not process.is_ready()
            process.start()
            there = sending.acknowledged
            until(lambda: sending.acknowledged > there + 50, "it goes on")
        finally:
            sending.end()
        until(lambda: read() >= sending.sent, "all are read")
        consumer.close()
        assert process.stop() == 0

    assert (sending.failed, sending.acknowledged) == ([], sending.sent)
    assert found == [*range(sending.sent)]


@pytest.mark.parametrize("how", [how for how in RUNS if how != "in a container"])
def test_the_pages_are_for_those_who_have_the_token_of_the_file(how: str, tmp_path: Path) -> None:
    with prepared(how, tmp_path) as process:
        process.start()
        without = process.status("/")
        given = process.status("/", Authorization=f"Bearer {TOKEN}")

    assert (without, given) == (401, 200)
    assert TOKEN not in process.log()


def test_the_probes_of_kubernetes_and_the_image_need_no_token(tmp_path: Path) -> None:
    one = server_files.container()
    probes = [one[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]  # fmt: skip
    with prepared("in a container", tmp_path) as process:
        before = process.health_check()
        process.start()
        statuses = [process.status(path) for path in probes]
        meanwhile = process.health_check()

    assert statuses == [200, 200, 200]
    assert (before != 0, meanwhile) == (True, 0)


def test_the_log_is_json_where_the_files_say_so(tmp_path: Path) -> None:
    with prepared("by systemd", tmp_path) as process:
        process.start()
        process.stop()

    lines = [line for line in process.log().splitlines() if "created a cluster" in line]
    assert [json.loads(line)["level"] for line in lines] == ["WARNING"]
