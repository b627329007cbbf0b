"""Command lines of the documents are taken by the parsers of their programs; the others say that nothing tries them."""

import re

import pytest
from django.core.management import get_commands

from tests.document_blocks.pages import HISTORY, LANGUAGES, PAGES, SHELL, Block, blocks, language_of_fences, spans
from tests.document_blocks.shell import NOT_RUN, Refused, judge, lines, manage

_PROGRAM = re.compile(r"pip install |(python )?manage\.py \w|make [a-z]|outbox-harvest -|python -m outbox\.devstack \w")
_COMMAND = re.compile(r"(harvest|outbox_\w+) -")
# It may lack what the command requires, and other packages have commands too.
_NAME_ALONE = re.compile(r"(?:python )?manage\.py (\w+)")


def in_sentences() -> list[Block]:
    found = [span for span in spans() if span.page != HISTORY]
    return [span for span in found if _PROGRAM.match(span.text) or _COMMAND.match(span.text)]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language_that_is_tried(page):
    assert set(language_of_fences(page)) <= set(LANGUAGES)


@pytest.mark.parametrize("block", blocks(*SHELL), ids=str)
def test_every_line_is_taken_or_marked(block):
    found = lines(block.text)
    assert found
    for line in found:
        judge(line, may_be_unknown=found[0] == NOT_RUN)


@pytest.mark.parametrize("span", in_sentences(), ids=str)
def test_commands_in_sentences_are_taken(span):
    if name := _NAME_ALONE.fullmatch(span.text):
        assert name[1] in get_commands() or not name[1].startswith("outbox")
    elif _COMMAND.match(span.text):
        manage(span.text.split(), is_whole=False)
    else:
        judge(span.text, may_be_unknown=True)


@pytest.mark.parametrize(
    "line",
    [
        "python manage.py outbox_no_such_command",
        "python manage.py harvest --no-such-option",
        "python manage.py outbox_lanes many",
        "outbox-harvest --no-such-option",
        "python -m outbox.devstack run --no-such-option -- true",
        "python -m outbox.devstack run -- python manage.py harvest --no-such-option",
        "make no-such-target",
        "make demo NO_SUCH_VARIABLE=1",
        'make bench ARGS="--no-such-option"',
        'make bench ARGS="--only no-such-part"',
        "make test ARGS=tests/no_such_file.py",
        'pip install "django-transactional-outbox[no-such-extra]"  # not run by the tests',
        "python manage.py harvest --no-such-option | psql  # not run by the tests",
        "python manage.py harvest | psql",
        "psql",
    ],
)
def test_a_wrong_line_is_refused(line):
    with pytest.raises(Refused):
        judge(line)
