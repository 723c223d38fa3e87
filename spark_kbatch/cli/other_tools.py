"""Commands and options of kcat, Kafka's console tools and others, and ours in their place.

Source: kcat's manual page, kcat(1); Kafka tools/.../ConsoleConsumerOptions.java, ConsoleProducer.java,
TopicCommand.java, ConfigCommand.java, consumer/group/ConsumerGroupCommandOptions.java.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click

from spark_kbatch.options.option import nearest

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
# Words that people try as commands, by what they are here.
_WORDS = {
    "`kbatch topics`": "ls ll list list-topics dir show-topics topic ping kafka-topics",
    "`kbatch describe`, `kbatch topics` for topics, `kbatch log-dirs` for disks, "
    "`kbatch verify` for whether all is well": "status stat stats info health metrics du df size "
    "show inspect kafka-log-dirs",
    "`kbatch create-topic`": "create add new mk mkdir touch init make-topic new-topic",
    "`kbatch create-partitions`": "grow partitions add-partitions",
    "`kbatch alter-topic`": "alter set config configs configure edit update kafka-configs",
    "`kbatch describe-topic`": "settings get-config describe-topics",
    "`kbatch delete-topic`, `kbatch delete-records`, or `kbatch groups delete`": "rm del delete "
    "drop remove rmdir",
    "`kbatch delete-records`": "truncate purge clear kafka-delete-records",
    "`kbatch produce`": "put write send pub publish producer append insert load import push "
    "console-producer kafka-console-producer",
    "`kbatch consume`": "cat read get print head consumer fetch pull records messages view peek "
    "kcat kafkacat console-consumer kafka-console-consumer",
    "`kbatch consume --follow`, or `kbatch consume --last N`": "tail watch follow stream sub "
    "subscribe",
    "`kbatch consume --where CONDITION`": "grep find search query filter select sql",
    "`kbatch offsets`": "offset get-offsets seek kafka-get-offsets",
    "`kbatch groups`": "group list-groups lag consumers members consumer-groups "
    "kafka-consumer-groups",
    "`kbatch groups reset`": "reset reset-offsets",
    "`kbatch transactions`": "transaction txn txns find-hanging kafka-transactions",
    "`kbatch serve`": "server start run broker up daemon listen kafka-server-start",
    "Ctrl+C for `kbatch serve`, which has no other end": "stop down kill kafka-server-stop",
    "`kbatch mirror`, or `kbatch export`": "copy cp mv backup restore sync replicate clone migrate "
    "mirror-maker connect-mirror-maker",
    "`kbatch export`": "save download convert extract to-parquet",
    "`kbatch history`": "log commits jobs audit",
    "`kbatch gc`": "clean cleanup vacuum optimize compact expire retention merge",
    "`kbatch verify`": "fsck validate test doctor scrub",
    "`kbatch repair`": "fix rebuild",
    "`kbatch dump`": "dump-log segments hexdump kafka-dump-log",
    "`kbatch schemas`": "schema registry subjects",
    "`kbatch --help`, or `kbatch COMMAND --help`": "help commands usage man",
    "`kbatch --version`": "version",
}
COMMANDS_OF_OTHERS = {word: ours for ours, words in _WORDS.items() for word in words.split()}
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
        "-g": "nothing: it keeps no offsets; `Cluster.follow(group=)` in Python does",
        "--group": "nothing: it keeps no offsets; `Cluster.follow(group=)` in Python does",
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
        "--shift-by": "nothing that moves by a number: --to-offset N is the offset itself, for all "
        "partitions; `kbatch groups PATH GROUP` shows where each is",
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
        **dict.fromkeys(
            ("--port", "-p", "--host", "--address", "--bind", "--listeners", "--bootstrap-server"),
            "--listen HOST:PORT",
        ),
        **dict.fromkeys(("--advertised-listeners", "--advertised-host"), "--advertise HOST:PORT"),
        **dict.fromkeys(("-d", "--daemon", "--background"), "nothing: it runs until Ctrl+C"),
    },
}  # by command


def no_such_command(words: Sequence[str], commands: Collection[str]) -> str:
    """Return what to say of words whose first is no command: what it is here, or the nearest."""
    word, *others = words
    name = word.lower().replace("_", "-").removesuffix(".sh").removesuffix(".bat")
    ours = COMMANDS_OF_OTHERS.get(name)
    near = nearest(name, commands)
    hint = f"did you mean `kbatch {near}`?" if near else "`kbatch --help` lists all commands"
    if ours:
        hint = f"here it is {ours}"
    elif others and others[0] in commands:
        hint = f"the command comes first: `kbatch {others[0]} {word}`"
    return f"No such command {word!r}; {hint}"


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
