"""Durations are read as Go reads them."""

import pytest

from outbox.cli.durations import parse_duration, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("1.5s", 1.5),
        ("2m", 120),
        ("1h30m", 5400),
        ("1m0.5s", 60.5),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("10μs", 1e-5),
        ("1ns", 1e-9),
        (".5s", 0.5),
        ("1.s", 1),
        ("0", 0),
        ("+0", 0),
        ("-1ms", -0.001),
        ("0s", 0),
    ],
)
def test_reads(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "s", "1 s", "1d", "1s2", "1S", "--1s", "1e3s", "ms1", "300y", "3000000h"])
def test_refuses_with_an_example(text):
    with pytest.raises(ValueError, match=r"Write a number with its unit, e\.g\. 100ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0025, "2.5ms"),
        (2.5, "2.5s"),
        (90, "90s"),
        (120, "2m"),
        (7200, "2h"),
        (1e-9, "1ns"),
        (5e-5, "50us"),
    ],
)
def test_shows_one_unit(seconds, text):
    assert show_duration(seconds) == text
    assert parse_duration(text) == pytest.approx(seconds)
