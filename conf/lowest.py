"""Print the lowest versions of the dependencies that pyproject.toml accepts, as constraints for pip.

`make lowest` installs them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_LOWER_BOUND = re.compile(r"([\w-]+)(?:\[[\w,-]+\])?>=([\d.]+)")


_EXTRAS = ("spark", "registry", "bucket", "metrics", "ui")  # that users install


def main() -> None:
    """Print a line for each dependency that has a lower bound, those of the users' extras too."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for requirement in project["dependencies"] + [one for name in _EXTRAS for one in extras[name]]:
        found = _LOWER_BOUND.match(requirement)
        if found:
            print(f"{found[1]}=={found[2]}")


if __name__ == "__main__":
    main()
