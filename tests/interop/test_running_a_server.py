"""The files of examples/server with what reads them: systemd, and what builds images.

It needs root, and systemd, buildah and debootstrap of Debian.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.support import server_files
from tests.support.kafka import MissingToolError
from tests.support.server_files import Run
from tests.support.server_images import Booted, Image, built
from tests.support.server_processes import TOKEN, ServerProcess
from tests.support.waiting import until

pytestmark = pytest.mark.interop

# So many that the kernel that checks them is compiled.
RECORDS = 50_000


def send_and_read(address: str, of: int = RECORDS) -> None:
    """Send numbers, and read all that is there."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": "zstd",
            "queue.buffering.max.messages": of,
        }
    )
    for number in range(of):
        producer.produce("events", str(number).encode())
    assert producer.flush(60) == 0
    read_all(address, of)


def read_all(address: str, of: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})  # fmt: skip
    consumer.subscribe(["events"])
    found: list[int] = []

    def is_all() -> bool:
        found.extend(int(one.value() or b"") for one in consumer.consume(10_000, 1) if not one.error())  # fmt: skip
        return len(found) >= of

    until(is_all, "all are read")
    consumer.close()
    assert found == [*range(of)]


def verified(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Let systemd look at a unit, whose program is one that is here."""
    unit = folder / server_files.UNIT.name
    unit.write_text(text.replace("/opt/kbatch/bin/kbatch", sys.executable))
    return subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)  # fmt: skip


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    text = server_files.UNIT.read_text(encoding="utf-8")

    done = verified(tmp_path, text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "Unknown key" in verified(tmp_path, text.replace("UMask=", "Umask=")).stderr


def test_systemd_rates_the_unit_as_well_confined(tmp_path: Path) -> None:
    unit = shutil.copy(server_files.UNIT, tmp_path)
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    try:
        with built(tmp_path_factory.mktemp("image")) as made:
            yield made
    except MissingToolError as missing:
        pytest.fail(str(missing), pytrace=False)


def test_the_image_serves_with_nothing_but_its_volume_to_write_to(
    image: Image, tmp_path: Path
) -> None:
    """It is not root there; health is asked by the image's own command; what is there is there after a restart."""
    config, volume = image.config, image.root / "var/lib/kbatch"
    environment = dict(one.split("=", 1) for one in config["Env"])
    run = Run(config["Entrypoint"], environment, "/ready", stop_s=30)
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", *server_files.health_check()]

    with ServerProcess(run, tmp_path / "log", {}, image.within()) as process:
        assert process.health_check() != 0
        process.start()
        assert process.health_check() == 0
        send_and_read(process.address)
        assert process.stop() == 0
        process.start()
        read_all(process.address, RECORDS)
        assert process.stop() == 0

    assert {(one.stat().st_uid, one.stat().st_gid) for one in volume.rglob("*")} == {(10001, 10001)}
    assert [*(volume / "kernels").rglob("*.nbc")]
    assert "cannot" not in process.log()


def test_the_unit_serves_under_systemd_with_all_that_confines_it(
    image: Image, tmp_path: Path
) -> None:
    """It is started again when it is killed, and stops in order. The image's programs are where the unit has them."""
    root = image.root
    (root / "opt/kbatch").mkdir(parents=True, exist_ok=True)
    (root / "opt/kbatch/bin").symlink_to("/usr/local/bin")
    (root / "etc/kbatch").mkdir(mode=0o700)
    (root / "etc/kbatch/token").write_text(TOKEN)
    shutil.copy(server_files.UNIT, root / "etc/systemd/system")
    state = root / "var/lib/kbatch"
    shutil.rmtree(state)
    client = f"from tests.interop import test_running_a_server as test; test.{{}}('127.0.0.1:9092', {RECORDS})"

    machine = Booted(root, server_files.UNIT.name, tmp_path / "log")
    try:

        def shown(name: str) -> str:
            done = machine.run("systemctl", "show", "kbatch", "--property", name, "--value")
            return done.stdout.strip()

        def status(path: str, *words: str) -> str:
            asked = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]
            return machine.run(*asked, *words, f"http://127.0.0.1:8088{path}", spaces=["--net"]).stdout  # fmt: skip

        until(lambda: status("/ready") == "200", "it is ready")
        assert status("/") == "401"
        assert status("/", "--header", f"Authorization: Bearer {TOKEN}") == "200"
        for call in ("send_and_read", "read_all"):
            done = machine.run(sys.executable, "-c", client.format(call), spaces=["--net"])
            assert done.returncode == 0, done.stderr
            if call == "send_and_read":
                machine.run("systemctl", "kill", "--signal", "KILL", "kbatch")
                until(lambda: shown("NRestarts") == "1", "it is started again")
                until(lambda: status("/ready") == "200", "it is ready again")
        machine.run("systemctl", "stop", "kbatch")
        ended = {name: shown(name) for name in ("ActiveState", "Result", "ExecMainStatus")}
    finally:
        print(machine.run("systemctl", "status", "--no-pager", "kbatch").stdout)
        machine.close()

    assert ended == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    assert [oct(path.stat().st_mode & 0o777) for path in (state, state / "cluster")] == ["0o700"] * 2  # fmt: skip
    assert [*(root / "var/cache/kbatch/kernels").rglob("*.nbc")]
