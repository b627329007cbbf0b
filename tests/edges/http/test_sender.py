"""The HTTP client of a relay, over real sockets on loopback."""

import json
import threading
import time
from collections import Counter

import pytest
from standardwebhooks import Webhook

from outbox.core.relay.addresses import AddressRules, network
from outbox.core.relay.results import AttemptCause, AttemptResult, Transport
from outbox.core.relay.signatures import secret_text
from outbox.core.relay.turns import Delivery, DeliveryContent
from outbox.edges.http import sender as module
from outbox.edges.http.sender import BODY_MAX, CurlSender, HttpOptions, HttpTarget
from tests.support.certificates import Authority
from tests.support.receiver import closed_port, receiver

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))
LOOPBACK = (network("127.0.0.0/8"), network("::1/128"))
DEADLINE_S = 10.0


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def ca_file(authority, tmp_path_factory):
    return str(authority.write(tmp_path_factory.mktemp("ca") / "ca.pem"))


@pytest.fixture
def web():
    with receiver() as found:
        yield found


class Client:
    """A sender, with the targets of its destinations."""

    def __init__(self, ca_file, *ports, **options):
        rules = options.pop("rules", None) or AddressRules(LOOPBACK, frozenset(ports))
        self.targets = {}
        given = {"allow_http": True} | options
        self.it = CurlSender(HttpOptions(ca_file, rules, **given), self.targets.get)
        self.ids = 0

    def start(self, url, body=b"{}", deadline_s=DEADLINE_S, keys=(KEY,), **headers):
        self.ids += 1
        name = f"d{self.ids}"
        self.targets[name] = HttpTarget(url, tuple(keys), headers)
        content = DeliveryContent(f"id-{self.ids}", "order.paid", body, "application/json")
        self.it.start(Delivery(self.ids, name, "t", content=content), deadline_s)

    def results(self, count=1, timeout_s=20.0):
        give_up_at, found = time.monotonic() + timeout_s, []
        while len(found) < count:
            assert time.monotonic() < give_up_at
            found += self.it.wait(0.5)
        assert len(found) == count
        return [one.result for one in found]

    def send(self, url, *given, **options):
        self.start(url, *given, **options)
        (result,) = self.results()
        return result


@pytest.fixture
def clients(ca_file):
    made = []

    def client(*ports, **options):
        made.append(Client(ca_file, *ports, **options))
        return made[-1]

    yield client
    for one in made:
        one.it.abandon()


@pytest.fixture
def client(clients, web):
    return clients(web.port)


# ---- what the receiver gets


def test_the_receiver_gets_the_bytes_and_a_signature_that_the_package_of_the_specification_accepts(client, web):
    body = json.dumps({"amount": 7, "name": "Zoë"}).encode()
    assert client.send(web.url, body, keys=(OTHER, KEY), **{"X-Tenant": "a"}) == AttemptResult(200)
    (found,) = web.received
    assert found.body == body
    for key in (KEY, OTHER):
        assert Webhook(secret_text(key)).verify(body, found.headers) == {"amount": 7, "name": "Zoë"}
    assert (found.id, found.headers["x-tenant"], found.headers["outbox-attempt"]) == ("id-1", "a", "1")
    assert found.headers["content-type"] == "application/json"
    assert "expect" not in found.headers


def test_bytes_of_any_kind_are_sent_as_they_are(client, web):
    body = bytes(range(256)) * 5_000
    assert client.send(web.url, body).cause is AttemptCause.DELIVERED
    assert client.send(web.url, b"").cause is AttemptCause.DELIVERED
    assert [found.body for found in web.received] == [body, b""]
    assert "expect" not in web.received[0].headers, "libcurl asks first with large bodies, unless it is told not to"


def test_a_connection_is_used_again(client, web):
    for _ in range(5):
        client.send(web.url)
    assert (web.connections, len(web.received)) == (1, 5)


def test_many_are_sent_at_a_time(client, web):
    begun = time.monotonic()
    for _ in range(50):
        client.start(f"{web.url}/slow/0.5")
    assert client.results(50) == [AttemptResult(200)] * 50
    assert time.monotonic() - begun < 10
    assert sorted(Counter(found.id for found in web.received).values()) == [1] * 50


def test_a_request_on_a_connection_that_ends_is_sent_again_with_the_same_id(client, web):
    assert client.send(f"{web.url}/dying").cause is AttemptCause.DELIVERED
    assert client.send(f"{web.url}/dying").cause is AttemptCause.DELIVERED
    assert [found.id for found in web.received] == ["id-1", "id-2", "id-2"]


# ---- what the receiver answers


@pytest.mark.parametrize("status", [200, 202, 204, 304, 400, 404, 410, 429, 500, 503])
def test_a_status_is_the_result(client, web, status):
    result = client.send(f"{web.url}/status/{status}")
    assert (result.status, result.transport) == (status, None)
    assert result.text == ("no, because of this" if status > 304 else "")


def test_a_redirect_is_not_followed(client, web):
    assert client.send(f"{web.url}/redirect").status == 307
    assert [found.path for found in web.received] == ["/redirect"]


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("nonsense", None)])
def test_a_receiver_may_ask_for_a_pause(client, web, header, seconds):
    result = client.send(f"{web.url}/retry_after/{header}")
    assert (result.status, result.retry_after_s) == (503, seconds)
    assert client.send(f"{web.url}/status/503").retry_after_s is None, "the next answer does not have it"


def test_a_status_counts_although_its_body_never_ends(client, web):
    begun = time.monotonic()
    assert client.send(f"{web.url}/long/200") == AttemptResult(200)
    assert client.send(f"{web.url}/long/500").status == 500
    assert time.monotonic() - begun < DEADLINE_S / 2


def test_of_a_body_little_is_read(client, web, monkeypatch):
    read = []
    monkeypatch.setattr(
        module.Exchange, "result", lambda *given: read.append(len(given[0]._body)) or AttemptResult(200)
    )
    client.send(f"{web.url}/long/200")
    assert read == [BODY_MAX]


def test_a_status_counts_although_its_body_drips(client, web):
    begun = time.monotonic()
    assert client.send(f"{web.url}/drip/200", deadline_s=0.5).cause is AttemptCause.DELIVERED
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("path", ["hang", "drip_headers"])
def test_an_attempt_ends_at_its_deadline(client, web, path):
    begun = time.monotonic()
    assert client.send(f"{web.url}/{path}", deadline_s=0.5).transport is Transport.TIMEOUT
    assert 0.4 < time.monotonic() - begun < 3


@pytest.mark.parametrize("path", ["reset", "nothing", "garbage"])
def test_a_connection_that_ends_without_an_answer_is_broken(client, web, path):
    assert client.send(f"{web.url}/{path}").transport is Transport.BROKEN


def test_a_connection_that_was_used_before_may_break_too(client, web):
    client.send(web.url)
    assert client.send(f"{web.url}/garbage").transport is Transport.BROKEN
    assert web.connections == 1


def test_a_port_on_which_nobody_listens(clients):
    port = closed_port()
    assert clients(port).send(f"http://127.0.0.1:{port}").transport is Transport.CONNECT


# ---- TLS


def test_a_certificate_is_verified(clients, authority, tmp_path):
    server = authority.write_server(tmp_path / "server.pem")
    stranger = Authority("stranger").write_server(tmp_path / "stranger.pem")
    unnamed = authority.write_server(tmp_path / "unnamed.pem", is_localhost=False)
    for path, host, expected in (
        (server, "127.0.0.1", None),
        (stranger, "127.0.0.1", Transport.TLS),
        (unnamed, "localhost", Transport.TLS),
    ):
        with receiver(path) as found:
            result = clients(found.port, allow_http=False).send(f"https://{host}:{found.port}")
            assert result.transport is expected
            assert len(found.received) == int(expected is None)


# ---- what must not be reached


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]",
     "0.0.0.0", "0", "[::]", "[::ffff:7f00:1]"],
)  # fmt: skip
def test_no_form_of_a_private_address_is_connected_to(clients, web, host):
    result = clients(rules=AddressRules(ports=frozenset({web.port}))).send(f"http://{host}:{web.port}")
    assert (result.cause, web.connections) == (AttemptCause.FORBIDDEN, 0)
    assert "is not a public address" in result.text


def test_the_metadata_service_is_not_connected_to(clients):
    result = clients(80).send("http://169.254.169.254/latest/meta-data/", deadline_s=2.0)
    assert (result.transport, result.text) == (
        Transport.FORBIDDEN,
        "169.254.169.254 is not a public address, and not in RELAY_ALLOW_NETWORKS",
    )


def test_a_port_that_is_not_allowed_is_not_connected_to(clients, web):
    result = clients(web.port + 1).send(web.url)
    assert (result.cause, web.connections) == (AttemptCause.FORBIDDEN, 0)
    assert "RELAY_PORTS" in result.text


def test_an_address_is_checked_again_for_each_connection(clients, web, monkeypatch):
    """A name may resolve to another address the next time."""
    client = clients(web.port)
    assert client.send(f"{web.url}/nothing").transport is Transport.BROKEN
    monkeypatch.setattr(AddressRules, "objection", lambda *given: "not any more")
    assert client.send(web.url) == AttemptResult(transport=Transport.FORBIDDEN, text="not any more")
    assert web.connections == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "HTTP://127.0.0.1:{port}"])
def test_plain_http_is_not_used_unless_it_is_allowed(clients, web, url):
    result = clients(web.port, allow_http=False).send(url.format(port=web.port))
    assert (result.cause, web.connections) == (AttemptCause.FORBIDDEN, 0)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://127.0.0.1:{port}/", "dict://127.0.0.1:{port}/", "not a url"]
)
def test_other_schemes_are_not_used(client, web, url):
    assert client.send(url.format(port=web.port)).cause is AttemptCause.FORBIDDEN
    assert web.connections == 0


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "all_proxy", "ALL_PROXY", "HTTPS_PROXY"])
def test_a_proxy_of_the_environment_is_not_used(clients, web, monkeypatch, name):
    with receiver() as proxy:
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("no_proxy", "")
        assert clients(web.port, proxy.port).send(web.url).cause is AttemptCause.DELIVERED
        rules = AddressRules(ports=frozenset({web.port, proxy.port}))
        assert clients(rules=rules).send(web.url).cause is AttemptCause.FORBIDDEN
        assert (proxy.connections, len(web.received)) == (0, 1)


def test_the_proxy_of_the_settings_is_used(clients, web, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with receiver() as proxy:
        proxy.be("/ok")
        assert clients(proxy=proxy.url).send(web.url).cause is AttemptCause.DELIVERED
        assert [found.path for found in proxy.received] == [f"{web.url}/"]
    assert web.connections == 0


# ---- our own mistakes


@pytest.mark.parametrize("header", ["Host", "webhook-id", "Transfer-Encoding"])
def test_a_target_may_not_have_a_header_of_the_relay(client, web, header):
    assert client.send(web.url, **{header: "evil"}).cause is AttemptCause.FORBIDDEN
    assert client.send(web.url, **{"X-A": "a\r\nHost: evil"}).cause is AttemptCause.FORBIDDEN
    assert web.connections == 0
    assert client.send(web.url).cause is AttemptCause.DELIVERED


def test_a_destination_that_does_not_exist_has_a_result(client):
    content = DeliveryContent("id", "", b"", "")
    client.it.start(Delivery(1, "gone", "t", content=content), DEADLINE_S)
    assert client.results() == [AttemptResult(transport=Transport.FORBIDDEN, text="the destination does not exist")]


# ---- waiting


def test_another_thread_ends_a_wait(client):
    threading.Timer(0.2, client.it.wake).start()
    begun = time.monotonic()
    assert client.it.wait(20.0) == []
    assert 0.1 < time.monotonic() - begun < 10


def test_a_wait_has_its_time_and_takes_no_cpu(client, web):
    client.start(f"{web.url}/hang")
    client.it.wait(0.3)
    begun, used = time.monotonic(), time.process_time()
    while time.monotonic() < begun + 1.0:
        assert client.it.wait(0.5) == []
    assert time.process_time() - used < 0.5


def test_what_is_abandoned_has_no_result(client, web):
    client.start(f"{web.url}/hang")
    client.it.wait(0.2)
    client.it.abandon()
    client.it.wake()
