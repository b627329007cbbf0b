"""Command lines, each read by the parser of its own program. Nothing is run."""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from itertools import groupby
from unittest import mock

from django.core.management import get_commands, load_command_class
from packaging.requirements import Requirement

import benchmarks.__main__
import outbox.devstack.__main__
from outbox.cli import options
from tests.support.databases import ROOT

NOT_RUN = "# not run by the tests"


class Refused(Exception):
    """The line cannot be right. Says why."""


def lines(text: str) -> list[str]:
    """The commands of a block. Where some begin with a prompt, everything else is output."""
    whole = text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in whole):
        whole = [line.removeprefix("$ ") for line in whole if line.startswith("$ ")]
    return [line for line in whole if line.strip()]


def judge(line: str, *, may_be_unknown: bool = False) -> None:
    """Each of the programs of a line, as they are joined by `|` or `&&`."""
    unknown = [words for words in _programs(line) if not _is_taken(words)]
    if unknown and not may_be_unknown and not line.rstrip().endswith(NOT_RUN):
        raise Refused(f"nothing parses {' '.join(unknown[0])!r}: end the line by {NOT_RUN!r}, or tag the block 'text'")


def _programs(line: str) -> list[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    groups = groupby(lexer, key=lambda word: set(word) <= set("|&;"))
    return [list(words) for is_punctuation, words in groups if not is_punctuation]


def _is_taken(words: list[str]) -> bool:
    """Whether a parser knows this program; `Refused` when it does not take the arguments."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    match words:
        case ["make", *arguments]:
            _make(arguments)
        case ["outbox-harvest", *arguments]:
            _parse(options.parser().parse_args, arguments)
        case ["python", "-m", "outbox.devstack", *arguments]:
            _devstack(arguments)
        case ["python", "-c", code]:
            ast.parse(code)
        case ["pip", "install", *arguments]:
            are_ours = [_requirement(argument) for argument in arguments]
            return all(are_ours)
        case _:
            at = next((at for at, word in enumerate(words) if word.endswith("manage.py")), None)
            if at is None:
                return False
            manage(words[at + 1 :])
    return True


def _parse(parse, arguments):
    """Words such as N and ID stand for numbers, or for text."""
    try:
        return parse([re.sub(r"^([A-Z]+|…|<\w+>)$", "1", argument) for argument in arguments])
    except (Exception, SystemExit) as error:
        raise Refused(f"{' '.join(arguments)}: {error}") from error


def manage(words: list[str], *, is_whole: bool = True) -> None:
    """A command of Django with its arguments; of one that is not whole some may be missing."""
    name, *arguments = words
    if name not in get_commands():
        raise Refused(f"there is no command {name!r}")
    command = load_command_class(get_commands()[name], name)
    parser = command.create_parser("manage.py", name)
    if not is_whole:
        for action in parser._actions:
            action.required = False
    _parse(parser.parse_args, arguments)


def _devstack(arguments):
    own, *rest = (list(part) for is_end, part in groupby(arguments, lambda word: word == "--") if not is_end)
    _parse(outbox.devstack.__main__._parser().parse_args, own)
    for command in rest:
        _is_taken(command)


def _requirement(argument):
    """Whether it is this distribution, with its extras; other options and packages are pip's own concern."""
    if argument.startswith((".", "django-transactional-outbox")):
        found = Requirement(argument.replace(".", "checkout", 1) if argument.startswith(".") else argument)
        if unknown := found.extras - _extras():
            raise Refused(f"there is no extra {unknown}")
        return True
    return False


@cache
def _extras():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()


def _make(arguments):
    """By make itself, which prints what it would do; then by the parser of what it would start with ARGS."""
    makefile = (ROOT / "Makefile").read_text()
    for name in (argument.partition("=")[0] for argument in arguments if "=" in argument):
        if not re.search(rf"\$\({name}\)", makefile):
            raise Refused(f"the Makefile does not read {name}")
    shown = _dry_run(*arguments)
    if (at := shown.rfind("-m benchmarks")) >= 0:
        with mock.patch.object(sys, "argv", ["bench", *shlex.split(shown[at:].splitlines()[0])[2:]]):
            _parse(lambda _: benchmarks.__main__._arguments(), [])
    for path in re.findall(r"\btests/[\w/.]*", shown):
        if not (ROOT / path).exists():
            raise Refused(f"{path} does not exist")


@cache
def _dry_run(*arguments):
    done = subprocess.run(
        ["make", "-n", *arguments], cwd=ROOT, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout
