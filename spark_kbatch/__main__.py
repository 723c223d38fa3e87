"""Entry point of `python -m spark_kbatch`, which runs the `kbatch` command.

For where another package's command has that name, or none is on PATH.
"""

from __future__ import annotations

from spark_kbatch.cli.main import main

main(prog_name="python -m spark_kbatch")
