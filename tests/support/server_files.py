"""What the files of examples/server say: how to run a server by systemd, in a container, and in Kubernetes.

Each is read by what it is written for: systemd's own words, the instructions of an image, YAML.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "examples" / "server"
UNIT, IMAGE, MANIFEST = (FOLDER / name for name in ("kbatch.service", "Containerfile", "kbatch.yaml"))  # fmt: skip
_INSTRUCTION = re.compile(r"^([A-Z]+) ((?:.*\\\n)*.*)$", re.MULTILINE)


class Run(NamedTuple):
    """A command line as a file has it, and what it runs with."""

    words: Sequence[str]
    environment: Mapping[str, str]
    probe: str  # the path that says whether clients may connect
    stop_s: int  # after SIGTERM until SIGKILL


def unit() -> dict[str, list[str]]:
    """Return the settings of the unit by their names; those that are set again and again have several values."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the image, each as one line."""
    found = _INSTRUCTION.findall(IMAGE.read_text(encoding="utf-8"))
    return [(name, re.sub(r"\\\n\s*", "", rest)) for name, rest in found]


def instruction(wanted: str) -> str:
    """Return the one instruction of this name."""
    (rest,) = (rest for name, rest in instructions() if name == wanted)
    return rest


def objects() -> dict[str, Any]:
    """Return the objects of the manifest by their kind. Numbers that begin with 0 are octal, as to Kubernetes."""
    reader = YAML(typ="safe")
    reader.version = (1, 1)
    found = reader.load_all(MANIFEST.read_text(encoding="utf-8"))
    return {one["kind"]: one for one in found}


def container() -> Any:
    """Return the one container of the manifest's pods."""
    (found,) = objects()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return found


def health_check() -> list[str]:
    """Return the command that the image's health is asked with."""
    words: list[str] = json.loads(instruction("HEALTHCHECK").partition(" CMD ")[2])
    return words


def runs() -> dict[str, Run]:
    """Return how each file runs a server, with names of its own system in its words as they are."""
    settings = unit()
    pod = objects()["StatefulSet"]["spec"]["template"]["spec"]
    (command,), (environment,) = settings["ExecStart"], settings["Environment"]
    of_image = json.loads(instruction("ENTRYPOINT"))
    image_environment = _assigned(instruction("ENV"))
    stop_s = pod["terminationGracePeriodSeconds"]
    (ready,) = re.findall(r"http://127[.]0[.]0[.]1:8088(/\w+)", health_check()[-1])
    one = container()
    return {
        "by systemd": Run(
            shlex.split(command), _assigned(environment), "/ready", int(*settings["TimeoutStopSec"])
        ),
        "in a container": Run(of_image, image_environment, ready, stop_s),
        "in Kubernetes": Run(
            [*of_image, *one["args"]], image_environment, one["readinessProbe"]["httpGet"]["path"], stop_s
        ),
    }  # fmt: skip


def replaced(words: Sequence[str], stand_ins: Mapping[str, str | Path]) -> list[str]:
    """Return words with parts of them replaced, such as a folder of the system by one of a test."""
    found = [*words]
    for shown, real in stand_ins.items():
        found = [word.replace(shown, str(real)) for word in found]
    return found


def _assigned(text: str) -> dict[str, str]:
    return dict(one.split("=", 1) for one in shlex.split(text))
