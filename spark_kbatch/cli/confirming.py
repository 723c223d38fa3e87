"""The question before a command deletes something or gives it up: asked on a terminal, answered by `--yes` elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from spark_kbatch.errors import ConfigError
from spark_kbatch.terminal import visible

LOOK = ", or --dry-run to look only"  # of `confirm`

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")


def confirm(lines: Iterable[str], verb: str, done: str, look: str = "") -> None:
    """Print what would be lost, and ask for confirmation; end the command unless the answer is yes.

    Args:
        lines: what would be lost.
        verb: what is asked for, such as "delete".
        done: the same as done, such as "deleted".
        look: how to look only, as the end of the error's sentence.

    Raises:
        ConfigError: stdin is no terminal, so no one can answer: what it holds is not meant as an answer.
    """
    for line in lines:
        click.echo(visible(line), err=True)
    if not sys.stdin.isatty():
        raise ConfigError(
            f"nothing was {done}: stdin is no terminal, so the question whether to {verb} cannot be asked; "
            f"give --yes to {verb}{look}"
        )
    click.confirm(f"{verb.capitalize()}?", abort=True, err=True)
