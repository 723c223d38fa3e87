"""How pytest-xdist divides the tests among processes: by file, but for two kinds of files.

Those that share a Spark session are in two parts. Those whose tests take minutes in `make soak`, and share nothing,
are divided test by test.
"""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parent.parent
SESSIONS = 2
LONG = {
    "tests/bucket/test_model.py",
    "tests/replica/test_administration_schedules.py",
    "tests/replica/test_schedules.py",
}


class TwoSessions(LoadScopeScheduling):  # type: ignore[misc]
    """Gives the tests of a file to one process, and the files that share a session to two."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file in LONG:
            return nodeid
        return f"session {SHARING.index(file) % SESSIONS}" if file in SHARING else file


SHARING = [
    path.relative_to(TESTS.parent).as_posix()
    for path in (*sorted((TESTS / "spark").glob("test_*.py")), TESTS / "test_conf.py")
    if "spark: SparkSession" in path.read_text(encoding="utf-8")
]
