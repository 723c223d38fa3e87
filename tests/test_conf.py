"""The files in conf/: each is loaded by what it is for."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_kbatch.options.producer import PRODUCER_OPTIONS, parse_producer_options
from spark_kbatch.options.write import WRITE_OPTIONS, parse_write_options
from tests.support.generated_docs import default_text

CONF = Path(__file__).resolve().parent.parent / "conf"
OLD_JAVA = "1.8"
NEW_JAVA = "21"


def settings(name: str, separator: str | None) -> dict[str, str]:
    lines = (CONF / name).read_text().splitlines()
    pairs = (line.split(separator, 1) for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def a_command(folder: Path, name: str, script: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def a_java(folder: Path, *, version: str) -> Path:
    """Make a home whose `java` says that it is of this version."""
    home = folder / f"java-{version}"
    script = (
        f"echo '    java.home = {home}' >&2; echo '    java.specification.version = {version}' >&2"
    )
    a_command(home / "bin", "java", script)
    return home


def ensure_java(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script where PATH holds nothing but `path` and what the script itself is made of."""
    for command in {"sed", "id"} - {command.name for command in path.glob("*")}:
        a_command(path, command, f'exec "$(PATH={os.defpath} command -v {command})" "$@"')
    return subprocess.run(
        ["/bin/sh", str(CONF / "ensure-java.sh")],
        env={"PATH": str(path), "JVM_DIRS": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("there", "answer"),
    [("chromium", (0, "chromium\n")), ("google-chrome", (0, "google-chrome\n")), ("sh", (1, ""))],
)
def test_chromium_is_taken_from_the_path_and_where_none_can_be_installed_it_says_so(
    there: str, answer: tuple[int, str], tmp_path: Path
) -> None:
    a_command(tmp_path, "id", "echo 0")
    a_command(tmp_path, there, "exit 0")

    done = subprocess.run(
        ["/bin/sh", str(CONF / "ensure-chromium.sh")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == answer
    assert ("none could be installed" in done.stderr) == (answer[0] != 0)


def test_spark_defaults_say_why_and_name_a_log_configuration_that_exists() -> None:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    for before, line in pairwise(lines):
        assert line.startswith(("spark.", "#")) or not line
        assert not line.startswith("spark.") or before.startswith("# ")

    options = settings("spark-defaults.conf", None)["spark.driver.extraJavaOptions"]
    log_configuration = options.removeprefix("-Dlog4j2.configurationFile=")
    assert (CONF.parent / log_configuration).is_file()


def test_writer_properties_are_the_defaults() -> None:
    given = settings("writer.properties", "=")
    # After a semicolon follows what holds on a real cluster.
    defaults = {option.key: default_text(option).partition(";")[0] for option in WRITE_OPTIONS}

    parse_write_options({"path": "/events", **given})  # which refuses what it does not know
    assert given.pop("topic") == "events"
    assert given == {key: defaults[key] for key in given}
    without_default = {
        "path", "topic", "kafka.bootstrap.servers", "partitioner.class", "log.dirs",
    }  # fmt: skip
    without_default |= {key for key, default in defaults.items() if default == "not set"}
    # Those of values as columns belong to a topic.
    without_default |= {key for key in defaults if key.startswith(("key.", "value."))}
    without_default.add("auto.register.schemas")
    # Those of transactions belong to a real cluster.
    without_default |= {key for key in defaults if key.startswith("transaction")}
    without_default |= {"delivery.guarantee", "exactly.once.driver.bytes"}
    assert given.keys() == defaults.keys() - without_default


def test_producer_properties_are_the_defaults() -> None:
    given = settings("producer.properties", "=")

    assert given == {
        option.key: default_text(option)
        for option in PRODUCER_OPTIONS
        if option.key not in ("client.id", "partitioner.class", "transactional.id")
        and not option.key.endswith(".level")
    }
    assert parse_producer_options(given) == parse_producer_options({})


@pytest.mark.spark
def test_writer_properties_make_a_topic(spark: SparkSession, tmp_path: Path) -> None:
    options = settings("writer.properties", "=")
    rows = spark.createDataFrame([("a",), ("b",)], "value string")
    rows.write.format("kbatch").options(**options).mode("append").save(str(tmp_path / "cluster"))

    log = spark.read.format("kbatch").option("subscribe", "events").load(str(tmp_path / "cluster"))
    assert sorted(bytes(row.value) for row in log.collect()) == [b"a", b"b"]


@pytest.mark.parametrize("where", ["JAVA_HOME", "PATH", "JVM_DIRS"])
def test_a_recent_java_is_used_where_it_is(tmp_path: Path, where: str) -> None:
    a_java(tmp_path, version=OLD_JAVA)
    home = a_java(tmp_path, version=NEW_JAVA)
    environment = {"JAVA_HOME": str(tmp_path / f"java-{OLD_JAVA}")}
    if where == "JAVA_HOME":
        environment = {"JAVA_HOME": str(home)}
    elif where == "PATH":
        a_command(tmp_path / "bin", "java", f'exec {home}/bin/java "$@"')
    else:
        environment |= {"JVM_DIRS": f"{tmp_path}/java-*"}

    run = ensure_java(tmp_path / "bin", **environment)
    assert (run.returncode, run.stdout) == (0, f"{home}\n")


@pytest.mark.parametrize("user_id", [pytest.param(0, id="root"), pytest.param(1000, id="sudo")])
def test_without_java_it_is_installed_with_the_package_manager(
    tmp_path: Path, user_id: int
) -> None:
    """The first package that the release has is taken; here Java 17 is no longer among them."""
    home = a_java(tmp_path, version=NEW_JAVA)
    a_command(tmp_path / "bin", "id", f"echo {user_id}")
    a_command(tmp_path / "bin", "sudo", 'test "$1" = -n && shift && test "$1" = true || "$@"')
    a_command(
        tmp_path / "bin",
        "apt-get",
        f"""echo "apt-get $*"
        case "$*" in *openjdk-17*) exit 100 ;;
        install*) /bin/ln -s {home}/bin/java {tmp_path}/bin/java ;; esac""",
    )

    run = ensure_java(tmp_path / "bin")
    assert (run.returncode, run.stdout) == (0, f"{home}\n")
    assert [line for line in run.stderr.splitlines() if line.startswith("apt-get")] == [
        "apt-get update",
        "apt-get install -y --no-install-recommends openjdk-17-jre-headless",
        "apt-get install -y --no-install-recommends openjdk-21-jre-headless",
    ]


def test_where_java_cannot_be_installed_the_error_names_the_command(tmp_path: Path) -> None:
    a_command(tmp_path / "bin", "id", "echo 1000")
    a_command(tmp_path / "bin", "sudo", "exit 1")  # it would ask for a password
    a_command(tmp_path / "bin", "apt-get", "exit 1")

    run = ensure_java(tmp_path / "bin")
    assert (run.returncode, run.stdout) == (1, "")
    assert "Spark needs Java 17 or newer, and none was found." in run.stderr
    command = "sudo apt-get install -y --no-install-recommends openjdk-17-jre-headless"
    assert f"\n    sudo apt-get update && {command}\n" in run.stderr


def test_without_a_package_manager_the_error_says_where_java_is_found(tmp_path: Path) -> None:
    run = ensure_java(tmp_path / "bin")
    assert (run.returncode, run.stdout) == (1, "")
    assert "https://adoptium.net" in run.stderr
