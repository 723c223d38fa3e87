"""Reports of damaged text, which may hold halves of surrogate pairs: no process can hand these to another."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.sections = [(name, _sendable(text)) for name, text in report.sections]
    if report.failed:
        report.longrepr = _sendable(report.longreprtext)
    return report


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
