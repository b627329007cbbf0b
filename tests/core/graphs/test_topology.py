"""The picture of a graph."""

from outbox.core.graphs.topology import mermaid, text
from outbox.core.graphs.values import ProcessorKind
from tests.core.graphs.graphs import PAIR, given, graph, pair


def example():
    return graph(
        given(
            ProcessorKind.FORK,
            "reserved",
            name="split",
            to={"eu": "orders-eu", "us": "orders-us"},
            strategy="at-least-once",
        ),
        given(ProcessorKind.SOURCE, "orders", name="shop", record="Order"),
        given(ProcessorKind.JOIN, PAIR, name="reserve", to="reserved", function=pair, on_error="log"),
        given(ProcessorKind.SINK, "orders-eu", name="pay", to=None),
        errors="errors",
    )


def test_mermaid():
    assert mermaid(example()).splitlines() == [
        "flowchart LR",
        '    t1[("reserved")]',
        '    t2[("orders-eu")]',
        '    t3[("orders-us")]',
        '    t4[("orders")]',
        '    t5[("stock")]',
        '    t6[("errors")]',
        '    p1["split<br>fork<br>at-least-once"]',
        "    t1 --> p1",
        "    p1 -->|eu| t2",
        "    p1 -->|us| t3",
        "    p1 -.->|errors| t6",
        '    p2["shop<br>source<br>Order"]',
        "    p2 --> t4",
        '    p3["reserve<br>join"]',
        "    t4 -->|order| p3",
        "    t5 --> p3",
        "    p3 --> t1",
        '    p4["pay<br>sink"]',
        "    t2 --> p4",
    ]


def test_text_names_processors_in_the_order_of_their_messages():
    assert text(example()).splitlines() == [
        "graph pricing",
        "  shop     source, Order                             →  orders",
        "  reserve  join                 order=orders, stock  →  reserved                    errors: log",
        "  split    fork, at-least-once  reserved             →  eu=orders-eu, us=orders-us  errors: errors",
        "  pay      sink                 orders-eu            →                              errors: hold",
    ]


def test_a_cycle_has_a_picture_too():
    found = graph(given(to="b"), given(inputs="b", to="orders", name="back"), cycles=True)
    assert [line.split()[0] for line in text(found).splitlines()[1:]] == ["price", "back"]
