"""Commands that ask a question, with a terminal at which someone types the answer."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path


def kbatch_answering(answer: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command with a terminal at which someone types the answer."""
    ours, terminal = pty.openpty()
    os.write(ours, answer.encode())
    command = [sys.executable, "-m", "spark_kbatch", *map(str, words)]
    done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, check=False)
    os.close(terminal)
    os.close(ours)
    return done
