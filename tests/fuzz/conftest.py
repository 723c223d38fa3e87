"""What tests of damaged data share: a folder in memory, and reports that may hold halves of surrogate pairs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.memory_folder import memory_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where the system has one: thousands of rounds write files, and would wait for a disk."""
    with memory_folder() as folder:
        yield folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # No process can hand halves of surrogate pairs to another.
    report.sections = [(name, _sendable(text)) for name, text in report.sections]
    if report.failed:
        report.longrepr = _sendable(report.longreprtext)
    return report


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
