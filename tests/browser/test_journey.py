"""What an operator does at three in the morning, in a real browser beside a real harvester: a record that Kafka rejects
is found on the dashboard, edited, and released with everything behind it in order. The numbers on the page are compared
with the database and with the harvester's own."""

import re
import secrets
import time
import urllib.request

import psycopg
import pytest
from selenium.webdriver.common.by import By

from tests.browser.site import free_port
from tests.harvest.processes import Harvest
from tests.support.topics import create_topic, read_topic

DASHBOARD = "/admin/outbox/sample/"
ALLOWED_BYTES = 1000


class Shop:
    """A topic that takes small records alone, a database, and a harvester with metrics."""

    def __init__(self, site, servers, folder):
        self.servers = servers
        self.topic = create_topic(servers, 3, **{"max.message.bytes": str(ALLOWED_BYTES)})
        self.db = psycopg.connect(site.url, autocommit=True)
        self.db.execute("TRUNCATE outbox, outbox_hold, outbox_dead")  # the tests before have a database in common
        self.port = free_port()
        self.harvest = Harvest(
            folder,
            site.url,
            "--metrics-port",
            f"127.0.0.1:{self.port}",
            OUTBOX_BOOTSTRAP_SERVERS=servers,
            OUTBOX_NAME=self.topic,
        )

    def stash(self, key, *values):
        self.db.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s, %s, v FROM unnest(%s::text[]) AS v",
            [self.topic, key, list(values)],
        )

    def count(self, table="outbox"):
        return self.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            found = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(found[1]) if found else None

    def arrived(self):
        """key → values in the order of the topic."""
        found = {}
        for message in read_topic(self.servers, self.topic):
            found.setdefault(message.key.decode(), []).append(message.value.decode())
        return found


@pytest.fixture
def shop(site, bootstrap_servers, tmp_path):
    made = Shop(site, bootstrap_servers, tmp_path)
    yield made
    made.harvest.discard()
    made.db.close()


def shown(browser, tile):
    """The number of a tile as the page has it now."""
    return browser.until(
        lambda: [
            float(e.get_attribute("data-outbox-value"))
            for e in browser.find(f"#outbox-tile-{tile} [data-outbox-value]")
        ],
        tile,
    )[0]


def in_the_last_hour(browser, tile):
    return int(browser.see(f"#outbox-tile-{tile} .note", "in the last hour").text.split()[0].replace(",", ""))


def history(shop):
    """What was before, for a chart to be looked at: its counts end where those of the database begin. Less than an
    hour, so that nothing of it is forgotten during the test."""
    shop.db.execute("SELECT pg_stat_force_next_flush()")
    shop.db.execute(
        "INSERT INTO outbox_sample (taken_at, backlog, oldest_age_s, stashed, delivered) "
        "SELECT date_trunc('minute', now()) - make_interval(mins => 52 - n), 40 + (35 * sin(n / 5.0))::int, 0.1, "
        "(n - 51) * 600 + (n < 51)::int * (300 * sin(n / 2.0))::int + pg_stat_get_tuples_inserted(t.oid), "
        "(n - 51) * 600 + (n < 51)::int * (300 * sin(n / 2.0 - 1))::int + pg_stat_get_tuples_deleted(t.oid) "
        "FROM generate_series(1, 51) n, (SELECT 'outbox'::regclass AS oid) t WHERE n NOT BETWEEN 20 AND 23"
    )


def wait(condition, timeout_s=90):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@pytest.mark.part
@pytest.mark.slow
@pytest.mark.timeout(420)  # it waits for Kafka, a harvester and a browser, each up to a minute or more
def test_a_poison_record_is_found_edited_and_released_in_order(browser, site, shop):
    history(shop)
    browser.sign_in(site)
    browser.open(site, DASHBOARD)
    before = in_the_last_hour(browser, "delivered")
    browser.complaints()  # of the page to sign in, which asks for a favicon
    shop.harvest.leads()
    big = secrets.token_urlsafe(3 * ALLOWED_BYTES)  # nothing that compresses to what is allowed
    shop.stash("good", "1")
    shop.stash("bad", big, "2", "3")
    shop.stash("good", "2", "3")
    wait(lambda: shop.count("outbox_hold") == 1 and shop.count() == 3)

    # The page says what has happened; its numbers are those of the database and of the harvester.
    browser.open(site, DASHBOARD)
    browser.see(".outbox-summary", "1 key is held back")
    browser.see("[data-outbox-part=held] tr", "The record is larger than the topic allows")
    assert "make the record smaller" in browser.text
    assert shown(browser, "backlog") == shop.count() == 3
    assert shown(browser, "held") == shop.metric("outbox_held_keys") == 1
    assert shown(browser, "dead") == shop.count("outbox_dead") == 0
    owner = shop.db.execute("SELECT owner_name FROM outbox_lane WHERE lane = 0").fetchone()[0]
    browser.see("#outbox-lane-0", owner)
    browser.see("#outbox-lane-0", "owned")  # a heartbeat may be late on a busy machine; the page renews itself
    delivered = shop.metric("outbox_delivered_records_total")
    assert delivered == 3
    for size in ("desktop", "phone"):
        browser.size(size)
        browser.screenshot(f"dashboard-{size}")
        assert browser.driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    browser.size("desktop")
    browser.scheme("dark")
    browser.screenshot("dashboard-dark")
    browser.scheme("light")

    # From the dashboard to the record, which is edited.
    browser.click("[data-outbox-part=held] a", "Decide")
    browser.see("#outbox-discard")
    browser.screenshot("hold")
    browser.click(".outbox-actions a", "Edit and send again")
    value = browser.see("#id_value")
    assert value.get_attribute("value") == big
    browser.screenshot("edit")
    browser.driver.execute_script("arguments[0].value = '1, shorter'", value)
    browser.driver.find_element(By.ID, "id_why").send_keys("too large for the topic")
    browser.click("input[type=submit].default")
    browser.see(".messagelist .success")

    # Released in order, without a reload of the dashboard.
    browser.open(site, DASHBOARD)
    wait(lambda: shop.count() == 0)
    assert shop.arrived() == {"bad": ["1, shorter", "2", "3"], "good": ["1", "2", "3"]}
    browser.see(".outbox-summary", "Delivery works normally")
    assert shown(browser, "held") == 0
    wait(lambda: shop.metric("outbox_delivered_records_total") == 6)
    browser.until(lambda: in_the_last_hour(browser, "delivered") - before == 6, "what was delivered")
    browser.screenshot("dashboard-released")

    browser.open(site, "/admin/outbox/auditlogentry/")
    assert "too large for the topic" in browser.see("#result_list").text
    assert "operator" in browser.text
    assert browser.complaints() == []
