"""`outbox.consumer`: how consumers are declared and found, and what is refused at once."""

import re
import subprocess
import sys

import pytest

import outbox
from outbox import checks
from outbox.consumers import registry
from outbox.core.consumers.values import ConsumerOptions
from outbox.exceptions import InvalidConsumer
from tests.support.databases import ROOT


@pytest.fixture(autouse=True)
def no_others(monkeypatch):
    monkeypatch.setattr(registry, "_consumers", {})


def test_a_function_is_registered_and_returned_as_it_is():
    def record(message):
        return message

    assert outbox.consumer("orders")(record) is record
    (found,) = registry._consumers.values()
    assert (found.function, found.names, found.patterns) == (record, ("orders",), ())
    assert found.options == ConsumerOptions("consumers.record")
    assert (found.durable, found.using) == (True, None)
    assert found.decoder("grün".encode()) == "grün"


def test_options_reach_the_consumer():
    @outbox.consumer(
        "orders",
        "payments",
        many=True,
        batch=5,
        start="latest",
        attempts=3,
        backoff=7,
        timeout_s=2,
        durable=False,
        using="other",
        name="shop.both",
        decoder=bytes,
    )
    def both(messages): ...

    found = registry._consumers["shop.both"]
    assert found.names == ("orders", "payments")
    assert found.options == ConsumerOptions(
        "shop.both", start="latest", batch=5, many=True, timeout_s=2.0, attempts=3, backoff_s=7.0
    )
    assert (found.durable, found.using, found.decoder) == (False, "other", bytes)


def test_topics_are_names_and_patterns_that_match_whole_names():
    @outbox.consumer("orders", re.compile(r"shop\.\d+"), name="some")
    def some(message): ...

    found = registry._consumers["some"]
    assert [topic for topic in ("orders", "orders2", "shop.12", "my.shop.12", "shop.12.x") if found.matches(topic)] == [
        "orders",
        "shop.12",
    ]


def test_the_name_is_that_of_the_app_and_the_function():
    def record(message): ...

    record.__module__ = "example_project.heroes.inbox"
    outbox.consumer("orders")(record)
    assert list(registry._consumers) == ["heroes.record"]


async def coroutine(message): ...


async def async_generator(message):
    yield message


def generator(message):
    yield message


def of_two(message, other): ...


def of_none(): ...


class Handler:
    def __init__(self, message): ...


class AsyncHandler:
    async def __call__(self, message): ...


class GeneratorHandler:
    def __call__(self, message):
        yield message


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (AsyncHandler(), "It is async"),
        (GeneratorHandler(), "has a yield"),
        (coroutine, "It is async"),
        (async_generator, "It is async"),
        (generator, "has a yield"),
        (of_two, "cannot be called with the message alone"),
        (of_none, "cannot be called with the message alone"),
        (Handler, "no function"),
        ("text", "no function"),
        (lambda message: None, "Its name 'consumers.<lambda>'"),
    ],
)
def test_functions_that_could_not_work_are_refused(function, problem):
    with pytest.raises(InvalidConsumer, match=problem):
        outbox.consumer("orders")(function)
    assert registry._consumers == {}


@pytest.mark.parametrize(
    ("topics", "options", "problem"),
    [
        ((), {}, "It names no topic"),
        ((["orders", "payments"],), {}, r'@outbox.consumer\("orders", "payments"\)'),
        ((re.compile(b"o"),), {}, r"re.compile\(...\) of a text"),
        (("orders.*",), {}, r"Give a pattern as re.compile"),
        (("",), {}, "no name that Kafka allows"),
        ((".",), {}, "no name that Kafka allows"),
        (("..",), {}, "no name that Kafka allows"),
        (("t" * 250,), {}, "no name that Kafka allows"),
        (("orders",), {"many": 1}, "many=1 is neither True nor False"),
        (("orders",), {"durable": None}, "durable=None is neither True nor False"),
        (("orders",), {"batch": 0}, "batch=0 is no whole number"),
        (("orders",), {"batch": True}, "batch=True is no whole number"),
        (("orders",), {"batch": 10.0}, "batch=10.0 is no whole number"),
        (("orders",), {"attempts": 0}, "attempts=0 is no whole number"),
        (("orders",), {"backoff": -1}, "backoff=-1 is no number of seconds"),
        (("orders",), {"start": "now"}, "start='now' is neither"),
        (("orders",), {"timeout_s": 0}, "timeout_s=0 is no number of seconds"),
        (("orders",), {"timeout_s": "60"}, "timeout_s='60' is no number of seconds"),
        (("orders",), {"using": ""}, "using='' is no alias"),
        (("orders",), {"decoder": "json"}, "decoder='json' is no function"),
        (("orders",), {"decoder": coroutine}, "Name a plain function"),
        (("orders",), {"name": "a b"}, "Its name 'a b'"),
        (("orders",), {"name": 7}, "Its name 7"),
    ],
)
def test_arguments_that_could_not_work_are_refused(topics, options, problem):
    with pytest.raises(InvalidConsumer, match=problem):
        outbox.consumer(*topics, **options)(lambda message: None)
    assert registry._consumers == {}


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(InvalidConsumer) as refused:
        outbox.consumer(7, batch=0, start="now", name="a b")(coroutine)
    for text in ("The topic 7 is int", "batch=0", "start='now'", "It is async", "Its name 'a b'", "coroutine"):
        assert text in str(refused.value)


def test_a_decorator_without_topics_is_explained():
    with pytest.raises(InvalidConsumer, match=r'Write @outbox.consumer\("orders"\)'):

        @outbox.consumer
        def record(message): ...


def test_two_consumers_may_not_share_a_name():
    def first(message): ...

    def second(message): ...

    outbox.consumer("orders", name="same")(first)
    outbox.consumer("orders", name="same")(first)  # its module was imported again
    with pytest.raises(InvalidConsumer, match=r"Two consumers have the name 'same': .*first.* and .*second"):
        outbox.consumer("orders", name="same")(second)
    assert registry._consumers["same"].function is first


def declare(function, *topics, **options):
    outbox.consumer(*(topics or ("orders",)), name="same", **options)(function)


def made():
    def record(message): ...

    return record


def test_a_module_that_was_imported_again_declares_the_same_consumers():
    for _ in range(2):
        declare(made(), re.compile("o.*"), batch=5)


def test_no_consumer_replaces_another_one():
    def wrapped(function):
        return lambda message: function(message)

    def first(message): ...

    declare(first, batch=5)
    for function, topics, options in (
        (first, ("payments",), {"batch": 5}),
        (first, ("orders", "payments"), {"batch": 5}),
        (first, ("orders",), {"batch": 6}),
    ):
        with pytest.raises(InvalidConsumer, match=r"the name 'same': .*first .*test_registry.py:\d+"):
            declare(function, *topics, **options)
    outbox.consumer("orders", name="other")(wrapped(first))
    with pytest.raises(InvalidConsumer, match="Give one of them another name="):
        outbox.consumer("orders", name="other")(wrapped(first))

    @outbox.consumer("orders", name="third")
    def record(message): ...

    with pytest.raises(InvalidConsumer, match="'third'"):

        @outbox.consumer("orders", name="third")
        def record(message): ...


LOADED = """
import sys, types
import django
from django.conf import settings
app = types.ModuleType("shop"); app.__path__ = []; app.__file__ = "shop.py"
inbox = types.ModuleType("shop.inbox")
class Finder:
    def find_spec(self, name, path=None, target=None):
        import importlib.machinery
        if name == "shop.inbox":
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        return inbox
    def exec_module(self, module):
        import outbox
        exec("def record(message): pass", module.__dict__)
        outbox.consumer("orders")(module.record)
sys.modules["shop"] = app
sys.meta_path.append(Finder())
import importlib.machinery
app.__spec__ = importlib.machinery.ModuleSpec("shop", None, is_package=True)
settings.configure(
    INSTALLED_APPS=["django.contrib.postgres", "outbox", "shop"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}},
    OUTBOX={"BOOTSTRAP_SERVERS": "localhost:1"},
)
django.setup()
import outbox
from outbox import checks
outbox.consumer
assert "shop.inbox" not in sys.modules, "a web process has no consumers"
from outbox.consumers.registry import registered
assert list(registered()) == ["shop.record"], registered()
assert list(registered()) == ["shop.record"]
assert "confluent_kafka" not in sys.modules
"""


def test_the_modules_inbox_are_imported_when_consumers_are_asked_for():
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_inbox_that_cannot_be_imported_is_an_error(monkeypatch):
    import django.utils.module_loading

    def fail(name):
        assert name == "inbox"
        raise ImportError("no module named stripe")

    monkeypatch.setattr(django.utils.module_loading, "autodiscover_modules", fail)
    with pytest.raises(ImportError, match="stripe"):
        registry.registered()


def test_the_check_names_what_keeps_consumers_from_working(monkeypatch):
    def fail():
        raise InvalidConsumer("The consumer shop.inbox.record cannot work.")

    monkeypatch.setattr(registry, "registered", fail)
    (message,) = checks.check_consumers()
    assert (message.id, "shop.inbox.record" in message.msg) == ("outbox.E009", True)
    assert message.hint
    monkeypatch.undo()
    monkeypatch.setattr(registry, "_consumers", {})
    outbox.consumer("orders", name="a", using="nowhere")(lambda message: None)
    outbox.consumer("orders", name="b", using="default")(lambda message: None)
    (message,) = checks.check_consumers()
    assert (message.id, "'nowhere'" in message.msg) == ("outbox.E009", True)
