"""Lines of charts: round axes, gaps where samples are missing, rates when a count was reset."""

from datetime import UTC, datetime, timedelta

import pytest

from outbox.admin import wording
from outbox.admin.dashboard import charts
from outbox.admin.dashboard.charts import Point, Series

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WINDOW = timedelta(hours=1)


def points(*values, every_s=60.0):
    start = NOW - timedelta(seconds=every_s * (len(values) - 1))
    return [Point(start + timedelta(seconds=every_s * index), value) for index, value in enumerate(values)]


def drawn(*series, filled=False):
    return charts.chart("Title", series, NOW, WINDOW, wording.number, lambda at: f"{at:%H:%M}", filled=filled)


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (0.3, 1), (1, 1), (1.01, 2), (3, 4), (5, 5), (7, 8), (9, 10), (99, 100), (1234, 2000)]
)
def test_axes_end_at_round_numbers(highest, top):
    assert charts.nice_top(highest) == pytest.approx(top)


def test_a_line_goes_from_where_it_begins_to_now():
    (line,) = drawn(Series("waiting", "w", points(0, 50, 100)), filled=True).lines
    assert line.path == "M966.67 100L983.33 50L1000 0"
    assert line.area == "M966.67 100L983.33 50L1000 0L1000 100L966.67 100Z"
    assert line.last == "100"


def test_a_silence_is_a_gap_and_a_lone_sample_a_dot():
    quiet = [Point(NOW - timedelta(minutes=age), 1.0) for age in (30, 29, 10, 0)]
    (line,) = drawn(Series("waiting", "w", quiet)).lines
    assert line.path.count("M") == 3
    assert line.path.count("h0.01") == 2


def test_unknown_values_break_the_line_and_are_empty_in_the_table():
    chart = drawn(Series("a", "a", points(1, None, 1)), Series("b", "b", points(1, 2, 3)))
    assert chart.lines[0].path.count("M") == 2
    assert chart.rows == [["12:00", "1", "3"], ["11:59", "", "2"], ["11:58", "1", "1"]]
    assert chart.head == ["time", "a", "b"]
    assert [column.text for column in chart.columns] == ["11:58: a 1, b 1", "11:59: a unknown, b 2", "12:00: a 1, b 3"]


def test_a_chart_says_in_words_what_it_shows():
    assert drawn(Series("waiting", "w", points(4, 9, 2))).summary == "waiting: between 2 and 9, latest 2"
    empty = drawn(Series("waiting", "w", []))
    assert empty.is_empty
    assert empty.summary == "waiting: no samples"


def test_rates_are_per_second_between_neighbours():
    assert [point.value for point in charts.rates(points(0, 60, 180, 180))] == [None, 1.0, 2.0, 0.0]
    assert charts.rates([]) == []


def test_no_rate_is_made_up_over_a_silence_or_when_a_count_began_anew():
    assert [point.value for point in charts.rates(points(0, 600, every_s=600.0))] == [None, None]
    assert [point.value for point in charts.rates(points(1000, 3, 63))] == [None, None, 1.0]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0.0 s"), (0.25, "0.2 s"), (42.7, "42 s"), (61, "1 min 1 s"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_durations_in_words(seconds, said):
    assert wording.duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0/s"), (0.01, "<0.1/s"), (0.25, "0.2/s"), (5.0, "5/s"), (12.6, "13/s"), (123456, "123,456/s")],
)
def test_rates_in_words(value, said):
    assert wording.rate(value) == said
