"""One processor of each kind. The environment says how their topics begin, and how a batch is made."""

import os
import time

import outbox

NAME = os.environ.get("GRAPH_NAME", "pricing")
BATCH = int(os.environ.get("GRAPH_BATCH", "50"))
OPTIONS = {
    "batch": BATCH,
    "attempts": int(os.environ.get("GRAPH_ATTEMPTS", "1")),
    "backoff": 0.1,
    "on_error": os.environ.get("GRAPH_ON_ERROR"),
}

graph = outbox.Graph(NAME, errors=f"{NAME}.errors")


def topic(name):
    return f"{NAME}.{name}"


class Unpriced(Exception):
    context = {"shop": "the test"}


def do(message):
    """What its header asks for."""
    does = message.header("does")
    if does == "fail":
        raise Unpriced(f"no price for {message.value}")
    if does == "end":
        os._exit(9)
    if does == "hang":
        time.sleep(60)
    if does == "large":
        return "x" * int(message.header("size"))
    return message.value


@graph.pipe(topic("orders"), to=topic("priced"), strategy=os.environ.get("GRAPH_STRATEGY", "exactly-once"), **OPTIONS)
def price(message):
    time.sleep(float(os.environ.get("GRAPH_SLOW", "0")))
    return do(message)


@graph.join({"left": topic("left"), "right": topic("right")}, to=topic("joined"), **OPTIONS)
def pair(left, right):
    do(left)
    return f"{left.value}+{right.value}"


@graph.alts([topic("web"), topic("shop")], to=topic("all"), **OPTIONS)
def merge(message):
    do(message)
    return f"{message.topic.rpartition('.')[2]}:{message.value}"


@graph.fork(topic("priced"), to={"eu": topic("eu"), "us": topic("us"), "log": topic("log")}, **OPTIONS)
def split(message):
    """Each to its region, and every tenth to the log."""
    number = int(message.value)
    found = {"eu" if number % 2 else "us": outbox.Output(number, key=message.key, headers={"region": "yes"})}
    return {**found, "log": [number, number]} if number % 10 == 0 else found


if os.environ.get("GRAPH_SINK"):

    @graph.sink(topic("eu"))
    def note(message):
        outbox.stash("noted", message.value)
