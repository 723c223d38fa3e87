"""The options of kcat and of Kafka's console tools, and ours in their place, for the error that names them.

Source: kcat's manual page, kcat(1); Kafka tools/.../ConsoleConsumerOptions.java, ConsoleProducer.java,
TopicCommand.java, ConfigCommand.java, consumer/group/ConsumerGroupCommandOptions.java.
"""

from __future__ import annotations

import click

_PATH = "the first argument: PATH, or HOST:PORT of a real cluster"
_TOPIC = "the argument TOPIC"
_GROUP = "the argument GROUP"
_THIS_MODE = "nothing: the command is that mode"
_IN_COMMANDS = {
    "-C": "`kbatch consume`",
    "-G": "`kbatch consume`, which reads without a group",
    "-L": "`kbatch topics`",
    "-P": "`kbatch produce`",
    "-Q": "`kbatch offsets --time`",
    "--list": "`kbatch topics`, or `kbatch groups`",
    "--describe": "`kbatch topics PATH TOPIC`, `kbatch describe-topic`, or `kbatch groups PATH GROUP`",
    "--create": "`kbatch create-topic`",
    "--alter": "`kbatch alter-topic`, or `kbatch create-partitions`",
    "--delete": "`kbatch delete-topic`, or `kbatch groups delete`",
    "--reset-offsets": "`kbatch groups reset`",
}
OF_ALL = {
    "-b": _PATH,
    "-t": _TOPIC,
    "--bootstrap-server": _PATH,
    "--bootstrap-servers": _PATH,
    "--broker-list": _PATH,
    "--topic": _TOPIC,
    "--topics": _TOPIC,
    "-F": "--command-config FILE",
    "--config": "--command-config FILE for a client's properties; settings of a topic are for `kbatch alter-topic`",
    "--command-property": "-X KEY=VALUE",
    "--consumer.config": "--command-config FILE",
    "--consumer-property": "-X KEY=VALUE",
    "--producer.config": "--command-config FILE",
    "--execute": "nothing: without --dry-run it is done",
    **_IN_COMMANDS,
}
_SETTINGS = {
    "--add-config": "--config KEY=VALUE",
    "--delete-config": "`kbatch alter-topic --reset KEY`",
    "--entity-name": _TOPIC,
    "--entity-type": "nothing: the command is for topics",
    "--set": "--config KEY=VALUE",
}
_GROUPS = {
    "--group": _GROUP,
    "-g": _GROUP,
    "--all-groups": "nothing: without GROUP all are listed",
    "--list": "nothing: without GROUP all are listed",
    "--describe": "nothing: `kbatch groups PATH GROUP` does that",
    "--members": "nothing: `kbatch groups PATH GROUP` shows them",
    "--state": "nothing: `kbatch groups` shows it",
    "--delete": "`kbatch groups delete`",
    "--topic": "`kbatch groups reset --topic`",
    "--to": "`kbatch groups reset` with --to-earliest, --to-latest, --to-offset or --to-datetime",
    **dict.fromkeys(
        ("--to-earliest", "--to-latest", "--to-offset", "--to-datetime"),
        "the same option of `kbatch groups reset`",
    ),
}
_TOPICS = {
    "-L": _THIS_MODE,
    "--list": _THIS_MODE,
    "--describe": "the argument TOPIC; settings are shown by `kbatch describe-topic`",
    "--exclude-internal": "nothing: --internal includes them",
    "--under-replicated-partitions": "`kbatch log-dirs`, and the column under-replicated",
}

OURS: dict[str, dict[str, str]] = {
    "topics": _TOPICS,
    "describe-topic": {
        "--describe": _THIS_MODE,
        "--entity-name": _TOPIC,
        "--entity-type": "nothing: the command is for topics",
    },
    "create-topic": {
        **_SETTINGS,
        "--replica-assignment": "--replication-factor N",
    },
    "alter-topic": {
        **_SETTINGS,
        "--alter": _THIS_MODE,
        "--partitions": "`kbatch create-partitions PATH TOPIC TOTAL`",
    },
    "create-partitions": {"--partitions": "the argument TOTAL", "--alter": _THIS_MODE},
    "delete-topic": {"--delete": _THIS_MODE},
    "delete-records": {"--offset-json-file": "the arguments PARTITION:OFFSET"},
    "consume": {
        "-C": _THIS_MODE,
        "-o": "--start OFFSET; for the last N (-o -N) --last N, for the end --start latest, for a time (-o s@) --from TIME",
        "-c": "-n N (--max-records)",
        "-e": "nothing: it ends at the end, unless --follow is given",
        "-q": "nothing: only records are printed",
        "-u": "nothing: each batch is flushed",
        "-J": "--json",
        "-K": r"--format, such as '%k:%v\n'",
        "-D": r"--format, such as '%v;'",
        "-g": "nothing: it reads without a group",
        "--group": "nothing: it reads without a group",
        "--from-beginning": "nothing: that is the default",
        "--max-messages": "-n N (--max-records)",
        "--offset": "--start OFFSET",
        "--property": r"--format, such as '%T\t%k\t%v\n', for print.timestamp and print.key",
        "--formatter-property": r"--format, such as '%T\t%k\t%v\n', for print.timestamp and print.key",
        "--include": "a TOPIC that starts with ^",
        "--whitelist": "a TOPIC that starts with ^",
        "--timeout-ms": "nothing: it ends at the end, unless --follow is given",
    },
    "produce": {
        "-P": _THIS_MODE,
        "-l": "the arguments FILE",
        "-k": "-K (--key-separator) or --key-field: each record brings its key",
        "-Z": "--null-marker ''",
        "--property": "-K (--key-separator) for parse.key and key.separator, --null-marker for null.marker",
        "--reader-property": "-K (--key-separator) for parse.key and key.separator, --null-marker for null.marker",
        "--producer-property": "--config KEY=VALUE",
        "--compression-codec": "-z (--compression-type)",
        "--request-required-acks": "--acks",
        "--set": "--config KEY=VALUE",
        "--sync": "nothing: it ends once all is written",
    },
    "offsets": {
        "-o": "--time",
        "--partitions": "nothing: all partitions are shown",
        "--topic-partitions": _TOPIC,
    },
    "groups": _GROUPS,
    "groups reset": {
        "--group": _GROUP,
        "-g": _GROUP,
        "--reset-offsets": _THIS_MODE,
        "--to": "--to-earliest, --to-latest, --to-offset N or --to-datetime TIME",
        "--to-current": "nothing: without a reset it stays there",
        "--shift-by": "nothing: --to-offset N is one offset for all partitions, and moves by none",
        "--by-duration": "--to-datetime TIME",
        "--all-topics": "nothing: without --topic all that the group has are moved",
    },
    "groups delete": {
        "--group": "the arguments GROUP",
        "-g": "the arguments GROUP",
        "--delete": _THIS_MODE,
    },
    "serve": {
        "--override": "--config KEY=VALUE",
        "--num-partitions": "--partitions N",
        "--set": "--config KEY=VALUE",
    },
}  # by command


def answers_of(command: str, own: set[str]) -> dict[str, str]:
    """Return what to say about options of other tools, for a command with these options of its own."""
    theirs = OF_ALL | OURS.get(command, {})
    return {option: answer for option, answer in theirs.items() if option not in own}


def in_our_words(error: click.NoSuchOption) -> click.UsageError:
    """Return an error about an unknown option, which names ours if another tool has it."""
    command = error.ctx.command if error.ctx else None
    name = "" if command is None or isinstance(command, click.Group) else command.name or ""
    own = {word for one in command.params for word in one.opts} if command else set[str]()
    ours = answers_of(name, own).get(error.option_name)
    if ours is None:
        return error
    return click.UsageError(f"No such option: {error.option_name}; here it is {ours}", error.ctx)
