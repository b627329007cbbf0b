"""The chart of the measurements: `make bench` writes a file, and the chart in the documents is drawn from it."""

import json
import re

import pytest

from benchmarks import chart
from benchmarks.__main__ import command
from benchmarks.report import Table

NAME, OTHER = list(chart.BARS)[:2]


def test_the_chart_in_the_documents_is_drawn_from_the_results_beside_the_benchmarks():
    assert chart.CHART.read_text() == chart.draw([json.loads(path.read_text()) for path in chart.RESULTS])


def measured(path, rates, command="make bench", name=NAME):
    table = Table()
    for rate in rates:
        table.row(name, "records/s").add(rate)
    table.row("not measured")
    table.row("another row", "ms").add(3.5)
    table.write(path, command, ["x86_64 & 2 cores"])
    return json.loads(path.read_text())


def test_a_run_is_drawn_with_its_spread_its_command_and_its_machine(tmp_path):
    run = measured(tmp_path / "found.json", [300, 100, 200])
    assert [row["name"] for row in run["rows"]] == [NAME, "another row"]
    drawn = chart.draw([run])
    assert ">200<" in drawn
    low, high = map(float, re.search(r'class="spread" d="M([0-9.]+) [0-9.]+H([0-9.]+)"', drawn).groups())
    assert high - chart.LABELS == pytest.approx(3 * (low - chart.LABELS), rel=0.01)
    assert ">make bench<" in drawn
    assert ">x86_64 &amp; 2 cores<" in drawn


def test_one_round_has_no_spread(tmp_path):
    assert 'class="spread"' not in chart.draw([measured(tmp_path / "found.json", [100])])


def test_figures_of_several_runs_say_which_run_they_are_of(tmp_path):
    runs = [
        measured(tmp_path / "1.json", [100], "make bench ARGS=one"),
        measured(tmp_path / "2.json", [50], "make bench ARGS=two", OTHER),
    ]
    drawn = chart.draw([*runs, measured(tmp_path / "3.json", [70])])
    assert f"{chart.BARS[NAME][0]} (1)" in drawn
    assert f"{chart.BARS[OTHER][0]} (2)" in drawn
    assert ">(2) make bench ARGS=two<" in drawn
    assert ">70<" not in drawn


def test_without_a_figure_there_is_no_chart(tmp_path):
    with pytest.raises(SystemExit, match="make bench"):
        chart.draw([measured(tmp_path / "found.json", [100], name="something else")])


@pytest.mark.parametrize("given", [["--json", "x.json", "--rounds", "1"], ["--rounds", "1", "--json=x.json"]])
def test_the_command_is_named_without_the_file(given):
    assert command(given) == 'make bench ARGS="--rounds 1"'


def test_the_command_without_options_is_the_plain_one():
    assert command(["--json", "x.json"]) == "make bench"
