"""The words of the command line. argparse, because it loads in 17 ms where others take 70 to 150."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from typing import Any, NoReturn

from cockpit import __version__
from cockpit.core.errors import UsageError, did_you_mean

STAGES = ("all", "data", "calibrate", "train", "wrap", "purge")

_EPILOG = """\
start here:
  ekvi-cockpit replay demo                a recorded duel, without torch
  ekvi-cockpit run --profile duel-local   the same training on two servers
  ekvi-cockpit compare last               what may be concluded, again
Ctrl-C in `run` stops the group and in `attach` only leaves it; a closed
terminal or a killed cockpit leaves it running: attach again.
exit codes: 0 done, 1 a run failed, 2 usage or configuration, 3 a server
  unreachable or a launch refused, 4 comparison refused (--strict),
  130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    """argparse, with our one-sentence errors and nearest names."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", hint=f"See `{self.prog} --help`.")


def _command(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """A command that is imported when it is called, so that `--help` loads none of them."""

    def call(args: argparse.Namespace) -> int:
        done: int = getattr(importlib.import_module(f"cockpit.cli.commands.{module}"), function)(args)
        return done

    return call


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--runs-dir",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="where runs are kept (else $EKVI_RUNS_DIR, else the user's data folder)",
    )
    return common


def _output(parser: argparse.ArgumentParser, *choices: str) -> None:
    parser.add_argument("--output", choices=choices or ("text", "json"), default="text", help="what stdout gets")


def _add(sub: Any, name: str, module: str, function: str, text: str, common: argparse.ArgumentParser) -> Any:
    parser = sub.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=[common])
    parser.set_defaults(command=_command(module, function))
    return parser


def _run(sub: Any, common: argparse.ArgumentParser) -> None:
    p = _add(sub, "run", "run", "run", "launch a profile's runs on its servers and follow them", common)
    p.add_argument("--profile", metavar="P", help="what to run on which servers (see `profiles list`)")
    p.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides; SERVER:KEY=VALUE for one server"
    )
    p.add_argument("--servers", metavar="A,B", help="only these servers, or server files by name")
    p.add_argument(
        "--multirun", action="store_true", help="sweep: KEY=1,2 or range() or choice() make several points"
    )
    p.add_argument("--repeats", type=int, metavar="N", help="runs a server and point (5 for a duel)")
    p.add_argument("--stage", choices=STAGES, help="only this stage")
    p.add_argument("--dry-run", action="store_true", help="print what would be done, as commands that work by hand")
    p.add_argument("--yes", "-y", action="store_true", help="with --stage purge: do not ask")
    p.add_argument("--detach", action="store_true", help="start, say the group's id and leave; see `attach`")
    p.add_argument("--watch", action="store_true", help="follow on the live screen")
    p.add_argument("--resume", metavar="GROUP", help="run again only what failed or is missing in a group")
    p.add_argument("--with", dest="with_", metavar="log,gpu", default="", help="add these events to --output json")
    _output(p)


def _following(sub: Any, common: argparse.ArgumentParser) -> None:
    p = _add(
        sub, "attach", "follow", "attach", "follow a group that was started before, from its first event", common
    )
    p.add_argument("id", metavar="RUN|GROUP", help="an id, a unique prefix of one, or `last`")
    p.add_argument("--watch", action="store_true", help="follow on the live screen")
    p.add_argument("--with", dest="with_", metavar="log,gpu", default="", help="add these events to --output json")
    _output(p)
    p = _add(sub, "stop", "follow", "stop", "stop a run, or all runs of a group", common)
    p.add_argument("id", metavar="RUN|GROUP", help="an id, a unique prefix of one, or `last`")
    _output(p)
    p = _add(sub, "fetch", "follow", "fetch", "bring home what a group's servers hold so far", common)
    p.add_argument("id", metavar="RUN|GROUP", help="an id, a unique prefix of one, or `last`")
    p.add_argument("--pattern", action="append", metavar="GLOB", help="files to bring: `*.pt`, `logs/**`")
    p.add_argument("--max-size", metavar="SIZE", help="bring at most this much of a run, such as 10G")
    _output(p)
    p = _add(sub, "replay", "follow", "replay", "play a recorded run or group as if it were live", common)
    p.add_argument("id", metavar="RUN|GROUP|demo", help="an id, a unique prefix of one, `last`, or `demo`")
    p.add_argument("--speed", type=float, metavar="X", help="times real time (1; 10 for the demo)")
    p.add_argument(
        "--watch", action=argparse.BooleanOptionalAction, help="on the live screen (the default on a terminal)"
    )
    p.add_argument("--with", dest="with_", metavar="log,gpu", default="", help="add these events to --output json")
    _output(p)


def _looking(sub: Any, common: argparse.ArgumentParser) -> None:
    p = _add(sub, "runs", "runs", "runs", "list runs", common)
    p.add_argument(
        "filter", nargs="*", metavar="FILTER", help="words such as state=FAILED server=left tag=x, or free text"
    )
    p.add_argument("--groups", action="store_true", help="list groups instead")
    p.add_argument("--sort", metavar="KEY", help="created, server, state, profile, size... (else the newest first)")
    p.add_argument("--reverse", action="store_true", help="the other way round")
    p.add_argument("--limit", type=int, metavar="N", help="at most N rows")
    _output(p)
    p = _add(sub, "show", "runs", "show", "show a run's summary, or a group's runs", common)
    p.add_argument("id", metavar="RUN|GROUP", help="an id, a unique prefix of one, or `last`")
    p.add_argument(
        "--iterations", action="store_true", help="each iteration with power, energy, heat, clocks and throttling"
    )
    _output(p)
    p = _add(sub, "tag", "runs", "tag", "add tags to a run or group, or take them away with --remove", common)
    p.add_argument("id", metavar="RUN|GROUP", help="an id, a unique prefix of one, or `last`")
    p.add_argument("tags", nargs="+", metavar="TAG", help="words")
    p.add_argument("--remove", action="store_true", help="take the tags away")
    _output(p)
    p = _add(sub, "rm", "runs", "remove", "delete a run, or a group with its runs", common)
    p.add_argument("id", metavar="RUN|GROUP", nargs="+", help="ids, unique prefixes, or `last`")
    p.add_argument("--yes", "-y", action="store_true", help="do not ask")
    _output(p)
    p = _add(sub, "compare", "compare", "compare", "set runs or groups side by side, with a verdict", common)
    p.add_argument(
        "sides", nargs="+", metavar="RUN|GROUP[:SERVER]", help="each gives a side per server and sweep point"
    )
    p.add_argument(
        "--within", default="1%", metavar="SHARE", help="what counts as equal, such as 0.5%% or 0.005 (1%%)"
    )
    p.add_argument("--strict", action="store_true", help="refuse an unfair comparison (exit 4)")
    _output(p, "text", "json", "md")


def _configuring(sub: Any, common: argparse.ArgumentParser) -> Any:
    profiles = sub.add_parser("profiles", help="list, show or validate profiles", parents=[common]).add_subparsers(
        dest="what", metavar="list|show|validate", required=True
    )
    p = _add(profiles, "list", "config", "profiles_list", "list the profiles that can be run", common)
    groups = ("model", "data", "training", "runner", "launcher", "theme", "pricing")
    p.add_argument("group", nargs="?", choices=groups, help="list what this group has to choose from instead")
    _output(p)
    for name, text in (("show", "print a profile as composed, for each server"), ("validate", "check a profile")):
        p = _add(profiles, name, "config", f"profiles_{name}", text, common)
        p.add_argument("profile", nargs=1 if name == "show" else "*", metavar="P", help="a profile's name")
        p.add_argument("--set", dest="overrides", nargs="+", default=[], metavar="KEY=VALUE", help="Hydra overrides")
        _output(p)
    servers = sub.add_parser("servers", help="add, list or test servers", parents=[common]).add_subparsers(
        dest="what", metavar="add|list|test", required=True
    )
    p = _add(servers, "list", "config", "servers_list", "list the servers that profiles can name", common)
    _output(p)
    p = _add(servers, "add", "config", "servers_add", "write a server file into the user's profiles", common)
    p.add_argument("name", metavar="NAME", help="letters, digits, - and _")
    p.add_argument("values", nargs="*", metavar="KEY=VALUE", help="address=local slots=1 env.NCCL_DEBUG=WARN ...")
    p.add_argument("--force", action="store_true", help="replace a server file of this name")
    _output(p)
    return servers


def _examining(sub: Any, servers: Any, common: argparse.ArgumentParser) -> None:
    p = _add(sub, "doctor", "doctor", "doctor", "look whether a profile's runs could start on its servers", common)
    p.add_argument("--profile", metavar="P", help="what would be run on which servers")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides, as for `run`")
    p.add_argument("--servers", metavar="A,B", help="only these servers, or server files by name")
    p.add_argument("--stage", choices=STAGES, help="only this stage")
    _output(p)
    p = _add(servers, "test", "doctor", "servers_test", "look whether servers can be reached and used", common)
    p.add_argument("names", nargs="*", metavar="NAME", help="server files by name (all)")
    _output(p)


def _sensing(sub: Any, common: argparse.ArgumentParser) -> None:
    p = _add(sub, "telemetry", "telemetry", "telemetry", "watch a profile's GPUs, without a run", common)
    p.add_argument("--profile", metavar="P", help="whose servers")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides, as for `run`")
    p.add_argument("--servers", metavar="A,B", help="only these servers, or server files by name")
    p.add_argument("--hz", type=float, metavar="N", help="samples a second (the profile's telemetry.hz, else 10)")
    p.add_argument("--seconds", type=float, metavar="S", help="end after so long (else at Ctrl-C)")
    p.add_argument("--record", metavar="FILE", help="keep every line in a new file")
    p.add_argument("--replay", metavar="FILE", help="play such a file instead")
    p.add_argument("--speed", type=float, metavar="X", help="with --replay: times its own pace")
    p.add_argument("--alarm-temp", type=float, metavar="C", help="tell when a sensor reaches this (degrees Celsius)")
    p.add_argument("--serve", metavar="[HOST:]PORT", help="OpenMetrics over HTTP, on this machine alone without HOST")
    _output(p)


def _bringing(sub: Any, common: argparse.ArgumentParser) -> None:
    p = _add(sub, "import", "importing", "import_", "make runs of logs that were kept elsewhere", common)
    p.add_argument("paths", nargs="+", metavar="LOG", help="each becomes a run; those of a folder are of one server")
    p.add_argument("--telemetry", metavar="FILE", help="samples of `agent.pyz sample` (else those beside the log)")
    p.add_argument("--server", metavar="NAME", help="what their machine is called (the folder's name)")
    p.add_argument("--vendor", choices=("nvidia", "amd", "cpu"), help="whose GPUs it has, where no telemetry tells")
    p.add_argument("--format", metavar="F", help="take iterations of this format alone")
    _output(p)


def _imaging(sub: Any, common: argparse.ArgumentParser) -> None:
    p = _add(sub, "build", "images", "build", "build the images of a profile on its servers", common)
    p.add_argument("--profile", metavar="P", help="whose launcher says what is built, and whose servers build it")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides, as for `run`")
    p.add_argument("--servers", metavar="A,B", help="only these servers, or server files by name")
    p.add_argument("--dry-run", action="store_true", help="print what would be done, as commands that work by hand")
    _output(p)
    p = _add(sub, "shell", "images", "shell", "open a shell on a server, as a profile's runs would have it", common)
    p.add_argument("--profile", metavar="P", help="whose runs it is to be like")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides, as for `run`")
    p.add_argument("--server", metavar="S", help="on which of its servers")
    # What follows `--` is cut off before argparse sees it, so argparse does not tell of it.
    p.usage = "%(prog)s [-h] [--runs-dir DIR] --profile P [--server S] [KEY=VALUE ...] [-- ARGV ...]"
    p.epilog = "-- ARGV ... runs that in place of a shell, options and all, and exits with its status."


def _beginning(sub: Any, common: argparse.ArgumentParser) -> None:
    p = _add(sub, "init", "init", "init", "write a first profile, asking on a terminal", common)
    p.add_argument("--name", metavar="P", help="the profile's name")
    p.add_argument(
        "--server", action="append", default=[], metavar="[NAME=]ADDRESS", help="a server, as for ssh (repeat it)"
    )
    p.add_argument("--launcher", choices=("container", "process"), help="train in a container, or as a plain process")
    p.add_argument("--image", metavar="IMAGE", help="the container's image (else the one that `build` makes)")
    p.add_argument("--model", metavar="M", help="the model's size (tiny)")
    p.add_argument("--repeats", type=int, metavar="N", help="runs a server")
    p.add_argument(
        "--from-ssh-config", nargs="*", metavar="HOST", help="server files for Host entries of SSH's configuration"
    )
    p.add_argument("--ssh-config", metavar="FILE", help="that configuration (~/.ssh/config)")
    p.add_argument("--from-env", nargs="+", metavar="FILE", help="two servers from KEY=VALUE files (CUDA_SERVER...)")
    p.add_argument("--yes", "-y", action="store_true", help="do not ask")
    p.add_argument("--force", action="store_true", help="overwrite files of these names")
    _output(p)


def build() -> argparse.ArgumentParser:
    """The whole parser; cheap enough to be built for `--help`."""
    common = _common()
    parser = _Parser(
        prog="ekvi-cockpit",
        description="Trains the same model on AMD and NVIDIA servers and says which is faster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"ekvi-cockpit {__version__}")
    parser.set_defaults(command=_command("screen", "screen"))
    sub = parser.add_subparsers(dest="verb", metavar="COMMAND", parser_class=_Parser)
    _run(sub, common)
    _following(sub, common)
    _looking(sub, common)
    _examining(sub, _configuring(sub, common), common)
    _beginning(sub, common)
    _imaging(sub, common)
    _sensing(sub, common)
    _bringing(sub, common)
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """The command and its arguments; raises UsageError, or SystemExit for --help and --version.

    KEY=VALUE words may stand before, between and after the options of `run`, which argparse alone cannot do.
    """
    parser = build()
    _check_command(parser, argv)
    argv, words = _shell_words(argv)
    args, rest = parser.parse_known_args(argv)
    wrong = [word for word in rest if word.startswith("-")]
    if wrong or (rest and not hasattr(args, "overrides")):
        words_ = ["ekvi-cockpit", args.verb, getattr(args, "what", None)]
        command = " ".join(word for word in words_ if word)
        raise UsageError(f"`{(wrong or rest)[0]}` is not an option of `{command}`.", hint=f"See `{command} --help`.")
    if rest:
        args.overrides = [*args.overrides, *rest]
    args.runs_dir = getattr(args, "runs_dir", None)
    args.words = words
    for name, value in vars(args).items():
        if name != "runs_dir":  # a folder may be called anything
            setattr(args, name, _text(value))
    return args


def _shell_words(argv: list[str]) -> tuple[list[str], list[str]]:
    """The words of `shell` before and after its `--`; what is behind is a command for the server, options and all."""
    if "shell" not in argv or "--" not in argv[argv.index("shell") :]:
        return argv, []
    at = argv.index("--", argv.index("shell"))
    return argv[:at], argv[at + 1 :]


def _text(value: Any) -> Any:
    """The words of an argument as text, also where the locale is not UTF-8; raises UsageError where they are none."""
    if isinstance(value, list):
        return [_text(item) for item in value]
    if not isinstance(value, str) or value.isascii():
        return value
    try:
        return os.fsencode(value).decode()
    except UnicodeEncodeError:  # decoded already
        return value
    except UnicodeDecodeError:
        raise UsageError(f"{value.encode(errors='backslashreplace').decode()!r} is not text in UTF-8.") from None


def _check_command(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    """Name the nearest command where the first word is none."""
    choices = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    word = next((w for i, w in enumerate(argv) if not w.startswith("-") and argv[i - 1 : i] != ["--runs-dir"]), None)
    if word is not None and choices is not None and word not in choices:
        raise UsageError(f"there is no command `{word}`.", hint=did_you_mean(word, choices))
