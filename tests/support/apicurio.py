"""Apicurio Registry, from Maven Central: a schema registry that others wrote, on loopback, with all in its memory.

    with apicurio(folder) as url:       # up within seconds; each has no schemas at first
        ...                             # Confluent's API is at `url`

By default every schema is compatible with every other one; `demand_compatibility` has it check a subject.
"""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tests.support.kafka import POM, class_path, free_ports
from tests.support.object_servers import started

REGISTRY_POM = POM.with_name("registry-pom.xml")
_START_S = 600  # on a machine that is busy with something else


@contextlib.contextmanager
def apicurio(folder: Path) -> Iterator[str]:
    """Start a registry, and yield the URL of Confluent's API; what it writes lies under `folder`.

    Raises:
        MissingToolError: there is no Maven, or it cannot fetch it.
    """
    archive = class_path(folder, pom=REGISTRY_POM).strip()
    program, temporary = folder / "program", folder / "tmp"
    temporary.mkdir()
    with tarfile.open(archive) as packed:
        packed.extractall(program, filter="data")
    (jar,) = program.glob("*-runner.jar")
    (port,) = free_ports(1)
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    command = [
        str(java), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", f"-Djava.io.tmpdir={temporary}",
        "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}", "-jar", str(jar),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with started(command, folder / "registry.log", f"{url}/subjects", start_s=_START_S):
        yield url


def demand_compatibility(url: str, subject: str, level: str = "BACKWARD") -> None:
    """Have the registry refuse schemas that are not compatible with a subject's latest version."""
    request = urllib.request.Request(
        f"{url}/config/{quote(subject, safe='')}",
        data=json.dumps({"compatibility": level}).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=_START_S):
        pass
