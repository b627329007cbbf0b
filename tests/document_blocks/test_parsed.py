"""YAML, SQL and PromQL blocks of the documents are taken by the programs that they are meant for."""

import os
import re
import subprocess

import pytest
import yaml
from django.db import connection

from outbox.cli import configuration, options
from outbox.contrib.prometheus import CATALOGUE
from tests.document_blocks.pages import Block, blocks, spans
from tests.support import promtool

DATA_SOURCE = {"DATABASE_URL": "postgresql://postgres@localhost/shop"}


def queries() -> list[Block]:
    """With those of sentences: a rate, or a metric with labels."""
    selector = re.compile(r"\b(rate|increase)\(|\boutbox_\w+(\{\w+=|\[\d)")
    return [*blocks("promql"), *(span for span in spans() if selector.search(span.text))]


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_is_taken(block):
    documents = list(yaml.safe_load_all(block.text))
    assert all(isinstance(document, dict) for document in documents)
    for document in documents:
        if "harvest" in document:
            configuration.settle(block.text, str(block), DATA_SOURCE, options.Overrides(), 1)


@pytest.mark.django_db
@pytest.mark.parametrize("block", blocks("sql"), ids=str)
def test_sql_runs(block):
    with connection.cursor() as cursor:
        cursor.execute(block.text)


@pytest.mark.parametrize("query", queries(), ids=str)
def test_queries_for_prometheus_are_taken(query, tmp_path):
    assert set(re.findall(r"\boutbox_\w+", query.text)) <= CATALOGUE.keys()
    if promtool.installed() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("promtool is not installed")
    rule = {"record": "page", "expr": query.text}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "page", "rules": [rule]}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
