"""The dashboard as a page: it renews itself, can be stopped, keeps what a reader has opened, and breaks no policy."""

import psycopg
import pytest
from selenium.webdriver.common.by import By

DASHBOARD = "/admin/outbox/sample/"


@pytest.fixture
def page(browser, site):
    browser.sign_in(site)
    browser.complaints()
    with psycopg.connect(site.url, autocommit=True) as db:
        for table in ("outbox", "outbox_hold", "outbox_dead", "outbox_sample", "outbox_held"):
            db.execute(f"DELETE FROM {table}")
        browser.open(site, DASHBOARD)
        browser.driver.execute_script("document.querySelector('[data-outbox-url]').dataset.marked = 'here'")
        yield db
    assert browser.complaints() == []


def updates(browser):
    return int(browser.see("[data-outbox-url]").get_attribute("data-outbox-updates") or 0)


def renewed(browser):
    before = updates(browser)
    browser.until(lambda: updates(browser) > before, "an update")


def stash(db, count=1):
    db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "SELECT 'orders', 'k', 'v' FROM generate_series(1, %s)",
        [count],
    )


@pytest.mark.slow
def test_it_renews_itself_and_keeps_what_the_reader_has_opened(browser, page):
    summary = browser.see("#outbox-table-1 summary")
    summary.click()
    browser.driver.execute_script("arguments[0].focus()", summary)
    assert browser.see("#outbox-table-1 td").is_displayed()
    stash(page, 12)
    browser.see("#outbox-tile-backlog", "12")
    assert browser.see("#outbox-table-1").get_attribute("open")
    assert browser.driver.execute_script("return document.activeElement.closest('details').id") == "outbox-table-1"
    # The same page, not another one in its place.
    assert browser.see("[data-outbox-url]").get_attribute("data-marked") == "here"

    # It stops when the reader asks it to, and resumes.
    browser.click(".outbox-foot button", "Stop updating")
    stash(page, 5)
    seen = updates(browser)
    browser.driver.execute_cdp_cmd(
        "Runtime.evaluate", {"expression": "new Promise(r => setTimeout(r, 2500))", "awaitPromise": True}
    )
    assert updates(browser) == seen
    browser.click(".outbox-foot button", "Resume updating")
    browser.see("#outbox-tile-backlog", "17")


@pytest.mark.slow
def test_it_says_when_it_is_no_longer_fresh(browser, site, page):
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    browser.see("[data-outbox-said].late", "Not updated since")
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**offline, "offline": False})
    browser.see("[data-outbox-said]:not(.late)", "Updated at")
    assert all("ERR_INTERNET_DISCONNECTED" in entry["message"] for entry in browser.complaints())
    browser.driver.delete_cookie("sessionid")
    browser.see("[data-outbox-said]", "signed out")


def hold(db, count=1, **columns):
    """Messages of a consumer. The id of the first."""
    given = {"reason": "failed", "died_at": None, **columns}
    return db.execute(
        'INSERT INTO outbox_held (consumer, topic, partition, "offset", key, value, reason, attempts, last_error, '
        "died_at) SELECT 'shop.inbox.record_payment', 'orders', 0, "
        'coalesce((SELECT max("offset") FROM outbox_held), 0) + i, '
        "'customer-1', '{\"amount\": 12}', %(reason)s, 5, 'ValueError: no amount', %(died_at)s "
        "FROM generate_series(1, %(count)s) i RETURNING id",
        {**given, "count": count},
    ).fetchone()[0]


def test_an_operator_edits_a_held_message_and_skips_another(browser, site, page):
    first, second = hold(page), hold(page)
    browser.open(site, "/admin/outbox/consumerhold/")
    browser.see("#result_list", "It waits for your decision.")
    browser.click("#result_list th a", "orders[0] offset 1")
    browser.click(".outbox-actions a", "Edit and try again")
    browser.see("#id_value").clear()
    browser.see("#id_value").send_keys('{"amount": 13}')
    browser.see("#id_why").send_keys("a typo")
    browser.click("input[type=submit]")
    browser.see(".messagelist", "You have saved the message.")
    browser.see("#result_list", "The consumer is about to try it.")
    assert page.execute("SELECT wanted, value FROM outbox_held WHERE id = %s", [first]).fetchone() == (
        "retry", b'{"amount": 13}',
    )  # fmt: skip
    browser.open(site, f"/admin/outbox/consumerhold/{second}/change/")
    browser.click("#outbox-skip")
    browser.see(".outbox-rows", "orders[0] offset 2")
    browser.click("input[type=submit]")
    browser.see(".messagelist", "1 row will be moved to the dead letters.")
    assert page.execute("SELECT wanted FROM outbox_held WHERE id = %s", [second]).fetchone() == ("skip",)


@pytest.mark.slow
def test_lists_and_forms_fit_a_phone_and_the_dark(browser, site, page):
    stash(page)
    message, lost = hold(page, 12), hold(page, 12, died_at="now")
    for table, reason in (("outbox_hold", "rejected"), ("outbox_dead", "rejected")):
        page.execute(
            f"INSERT INTO {table} (topic, key, reason, error_code, last_error, record_id) "
            "SELECT 'orders', 'customer-' || i, %s, 'MSG_SIZE_TOO_LARGE', 'Broker: Message size too large', i "
            "FROM generate_series(1, 12) i",
            [reason],
        )
    page.execute(
        "INSERT INTO outbox_hold (topic, reason, error_code) VALUES ('mails', 'rejected', 'TOPIC_AUTHORIZATION_FAILED')"
    )
    page.execute(
        "INSERT INTO outbox_partition (consumer, topic, partition, owner, state, reason, lag, oldest_age_s) SELECT "
        "'shop.inbox.record_payment', 'orders', i, 'web-1_7', 'stopped', repeat('why it is stopped ', 9), i, 90 * i "
        "FROM generate_series(0, 5) i ON CONFLICT DO NOTHING"
    )
    held, letter = (
        page.execute(f"SELECT min(id) FROM {table}").fetchone()[0] for table in ("outbox_hold", "outbox_dead")
    )
    addresses = {
        "dashboard": "sample/",
        "consumers": "consumerpartition/",
        "messages": "consumerhold/",
        "message": f"consumerhold/{message}/change/",
        "edit-message": f"consumerhold/{message}/edit/",
        "lost": "consumerdeadletter/",
        "lost-one": f"consumerdeadletter/{lost}/change/",
        "holds": "hold/",
        "hold": f"hold/{held}/change/",
        "letters": "deadletter/",
        "letter": f"deadletter/{letter}/change/",
        "edit-letter": f"deadletter/{letter}/edit/",
        "pending": "outboxrecord/",
        "pause": "hold/pause/",
        "audit": "auditlogentry/",
    }
    try:
        for size, scheme in (("desktop", "light"), ("phone", "dark")):
            browser.size(size)
            browser.scheme(scheme)
            for name, address in addresses.items():
                browser.open(site, f"/admin/outbox/{address}")
                browser.screenshot(f"{name}-{size}-{scheme}")
                assert browser.driver.execute_script("return document.documentElement.scrollWidth <= innerWidth"), name
            browser.open(site, "/admin/outbox/outboxrecord/")
            browser.see("[name=_selected_action]").click()
            browser.driver.execute_script("document.querySelector('select[name=action]').value = 'pause'")
            browser.click("button[name=index]")
            browser.see("#id_why")
            browser.screenshot(f"confirm-{size}-{scheme}")
            browser.open(site, "/admin/outbox/deadletter/")
            browser.see("#action-toggle").click()
            browser.driver.execute_script("document.querySelector('select[name=action]').value = 'discard'")
            browser.see("[name=why]").send_keys("not wanted any more")
            browser.click("button[name=index]")
            assert browser.see("#id_why").get_attribute("value") == "not wanted any more"
            browser.screenshot(f"discard-{size}-{scheme}")
    finally:
        browser.size("desktop")
        browser.scheme("light")


def test_without_scripts_the_page_is_whole(browser, site, page):
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(site, DASHBOARD)
        assert "Load the page again" in browser.text
        assert browser.see("#outbox-tile-backlog").is_displayed()
        assert not browser.driver.find_element(By.CSS_SELECTOR, ".outbox-foot button").is_displayed()
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
