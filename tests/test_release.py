"""What is published: a wheel and a source distribution that are complete, and say so truly."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from readme_renderer.markdown import render
from ruamel.yaml import YAML

import spark_kbatch
from tests.conftest import REPOSITORY
from tests.support.distributions import build_distributions

# In the repository and of no use outside it.
NOT_PUBLISHED = {".ci/run", ".git-blame-ignore-revs"}


class Distributions(NamedTuple):
    wheel: Path
    sdist: Path

    @property
    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as file:
            return set(file.namelist())

    @property
    def in_sdist(self) -> set[str]:
        with tarfile.open(self.sdist) as file:
            return {member.name.partition("/")[2] for member in file.getmembers()}

    def of_wheel(self, name: str) -> bytes:
        """Return a file of the wheel's metadata."""
        with zipfile.ZipFile(self.wheel) as file:
            return file.read(f"spark_kbatch-{spark_kbatch.__version__}.dist-info/{name}")

    @property
    def metadata(self) -> Message:
        return message_from_bytes(self.of_wheel("METADATA"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return Distributions(*build_distributions(tmp_path_factory.mktemp("dist")))


def tracked() -> set[str]:
    """Return the files that git has."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("only a clone says which files there are")
    names = {name for name in done.stdout.decode().split("\0") if name}
    return {name for name in names if (REPOSITORY / name).exists()}


def test_the_source_distribution_has_every_file_of_the_repository(built: Distributions) -> None:
    assert built.in_sdist - {"PKG-INFO"} == tracked() - NOT_PUBLISHED


def test_the_wheel_has_the_package_and_what_finds_it(built: Distributions) -> None:
    metadata = {name for name in built.in_wheel if ".dist-info/" in name}
    tops = ("spark_kbatch/", "pyspark_kbatch/", "pytest_kbatch")
    assert built.in_wheel - metadata == {name for name in tracked() if name.startswith(tops)}

    assert {Path(name).name for name in metadata} == {
        "METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE", "NOTICE",
    }  # fmt: skip
    assert "kbatch = spark_kbatch.cli.main:main" in built.of_wheel("entry_points.txt").decode()
    assert "Tag: py3-none-any" in built.of_wheel("WHEEL").decode()


def test_the_version_is_stated_once(built: Distributions) -> None:
    assert built.metadata["Version"] == spark_kbatch.__version__
    stated = f'"{spark_kbatch.__version__}"'
    assert stated not in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")

    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(.*?)\]", changes, re.MULTILINE)
    assert newest is not None
    assert newest[1] in ("Unreleased", spark_kbatch.__version__)


def test_twine_finds_nothing_to_complain_of(built: Distributions) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, built)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2  # wherever it breaks its lines


def addresses(built: Distributions) -> list[str]:
    """Return the repository's public address, as pyproject.toml alone has it; nothing before there is one."""
    urls = built.metadata.get_all("Project-URL", [])
    return [url.split(", ")[1] for url in urls if url.startswith("Source")]


def test_the_line_that_installs_from_the_repository_waits_for_its_address(
    built: Distributions,
) -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    found = {line for page in pages for line in re.findall(r"git\+\S+", page.read_text("utf-8"))}
    assert found == {f"git+{address}'" for address in addresses(built)}


def test_links_of_the_page_on_a_package_index_lead_somewhere(built: Distributions) -> None:
    """There a relative link leads nowhere; those of the README are made absolute, or text that names the file."""
    shown = render(str(built.metadata.get_payload()))
    assert shown is not None
    assert "speeds.svg" not in shown
    links = re.findall(r'(?:href|src)="([^"]*)"', shown)
    assert [link for link in links if not re.match(r"https://|#", link)] == []

    sources = addresses(built)
    for name in ("docs/options.md", "docs/versions.md", "CONTRIBUTING.md", "LICENSE"):
        if sources:
            assert f"{sources[0]}/blob/v{spark_kbatch.__version__}/{name}" in links
        else:
            assert f"({name})" in re.sub("<[^>]*>", "", shown)


# The workflows of a public host. What their jobs run are targets of the Makefile, which other tests run.

WORKFLOWS = REPOSITORY / ".github" / "workflows"


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_the_workflow_follows_its_published_schema(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOWS / name)],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load((WORKFLOWS / name).read_text(encoding="utf-8"))
    return found


def test_a_tag_alone_publishes_what_was_built_and_checked(
    built: Distributions, tmp_path: Path
) -> None:
    workflow = loaded("release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]

    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}, "which the index trusts; no secret"
    assert "secrets" not in (WORKFLOWS / "release.yml").read_text(encoding="utf-8")
    up, down = (
        next(one["with"] for one in job["steps"] if kind in one.get("uses", ""))
        for job, kind in ((build, "upload-artifact"), (publish, "download-artifact"))
    )
    assert (up["name"], up["path"]) == (down["name"], down["path"]) == ("dist", "dist/")
    assert "pypa/gh-action-pypi-publish@release/v1" in [one.get("uses") for one in publish["steps"]]

    made, checked = (one["run"] for one in build["steps"] if "run" in one)
    assert made.startswith("make dist ")
    (tmp_path / "dist").symlink_to(built.wheel.parent)
    for version, is_it in ((spark_kbatch.__version__, True), ("9.9.9", False)):
        done = subprocess.run(
            ["bash", "-c", checked],
            cwd=tmp_path,
            env={"GITHUB_REF_NAME": f"v{version}"},
            check=False,
        )
        assert (done.returncode == 0) == is_it


def test_the_workflow_covers_the_pythons_and_sparks_that_are_promised(built: Distributions) -> None:
    jobs = loaded("ci.yml")["jobs"]
    covered = jobs["test"]["strategy"]["matrix"]

    python = "Programming Language :: Python :: "
    promised = [word.removeprefix(python) for word in built.metadata.get_all("Classifier", [])]
    assert covered["python"] == [word for word in promised if re.fullmatch(r"3\.\d+", word)]
    assert built.metadata["Requires-Python"] == f">={covered['python'][0]}"

    oldest = f">={covered['spark'][0].removeprefix('==').removesuffix('.*')}"
    assert f"pyspark[sql]{oldest}; extra == 'spark'" in built.metadata.get_all("Requires-Dist", [])
    assert covered["spark"][-1].startswith(">="), "the newest, whichever it is"

    ran = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {words.split()[0] for words in ran} == {"make"}
    assert {words.split()[1] for words in ran} == {"lint", "test", "lowest", "dist"} & set(targets)
