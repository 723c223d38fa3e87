"""The options of kcat and of Kafka's console tools, and ours in their place, for the error that names them.

Source: kcat's manual page, kcat(1); Kafka tools/.../ConsoleConsumerOptions.java, ConsoleProducer.java.
"""

from __future__ import annotations

import click

_PATH = "the first argument: PATH, or HOST:PORT of a real cluster"
_TOPIC = "the argument TOPIC"
_OF_ALL = {
    "-b": _PATH,
    "-t": _TOPIC,
    "--bootstrap-server": _PATH,
    "--bootstrap-servers": _PATH,
    "--topic": _TOPIC,
    "--command-config": "--config",
}

OURS: dict[str, dict[str, str]] = {
    "consume": {
        "-C": "nothing: `kbatch consume` is that mode",
        "-o": "--start OFFSET; for the last N (-o -N) --last N, for the end --start latest, for a time (-o s@) --from TIME",
        "-c": "-n N (--max-records)",
        "-e": "nothing: it ends at the end, unless --follow is given",
        "-J": "--json",
        "-K": r"--format, such as '%k:%v\n'",
        "-D": r"--format, such as '%v;'",
        "--from-beginning": "nothing: that is the default",
        "--max-messages": "-n N (--max-records)",
        "--offset": "--start OFFSET",
        **_OF_ALL,
    },
    "produce": {
        "-P": "nothing: `kbatch produce` is that mode",
        "-l": "the arguments FILE",
        "-k": "-K (--key-separator) or --key-field: each record brings its key",
        "-Z": "--null-marker ''",
        **_OF_ALL,
    },
}  # by command


def in_our_words(error: click.NoSuchOption) -> click.UsageError:
    """Return an error about an unknown option, which names ours if another tool has it."""
    command = error.ctx.command.name if error.ctx else None
    ours = OURS.get(command or "", {}).get(error.option_name)
    if ours is None:
        return error
    return click.UsageError(f"No such option: {error.option_name}; here it is {ours}", error.ctx)
