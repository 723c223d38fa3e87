"""All commands of `kbatch`, which imports each only when it runs."""

from __future__ import annotations

import click

from spark_kbatch.cli.main import cli

_CONTEXT = click.Context(cli)
COMMANDS: dict[str, click.Command] = {}
for _name in cli.list_commands(_CONTEXT):
    _command = cli.get_command(_CONTEXT, _name)
    assert _command is not None
    COMMANDS[_name] = _command
