"""Which addresses a relay may connect to."""

from ipaddress import IPv6Address

import pytest

from outbox.core.relay.addresses import AddressRules, contained, network

PUBLIC = (
    "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1", "192.0.1.1", "198.20.0.1",
    "223.255.255.255",
    "2606:4700::1111", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1",
    "2001:0:808:808:0:ffff:f7f7:f7f7",
)  # fmt: skip
PRIVATE = (
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.255", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.7",
    "203.0.113.7", "224.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1", "3fff::1",
    "2001:10::1", "64:ff9b:1::1", "100::1", "4000::1",
    "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "2002:a00:1::1",
    "2001:0:7f00:1:0:ffff:f7f7:f7f7", "2001:0:808:808:0:ffff:80ff:fffe",
)  # fmt: skip


@pytest.mark.parametrize("host", PUBLIC)
def test_public_addresses_are_allowed(host):
    assert AddressRules().objection(host, 443) == ""


@pytest.mark.parametrize("host", PRIVATE)
def test_others_are_not(host):
    assert "is not a public address" in AddressRules().objection(host, 443)


@pytest.mark.parametrize("host", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203"])
def test_an_operator_may_allow_a_network(host):
    rules = AddressRules((network("10.1.0.0/16"),))
    assert rules.objection(host, 443) == ""
    assert rules.objection("10.2.0.1", 443)


def test_an_operator_may_allow_a_network_of_ipv6():
    rules = AddressRules((network("fd00:1::/32"),))
    assert rules.objection("fd00:1::7", 443) == ""
    assert rules.objection("fd00:2::7", 443)


@pytest.mark.parametrize(("port", "is_allowed"), [(443, True), (8443, True), (80, False), (6379, False)])
def test_ports_are_limited(port, is_allowed):
    assert (AddressRules(ports=frozenset({443, 8443})).objection("8.8.8.8", port) == "") is is_allowed


@pytest.mark.parametrize("host", ["", "example.com", "127.1", "0x7f.1", "2130706433", "/run/socket"])
def test_what_is_no_address_is_not_allowed(host):
    assert "is not an IP address" in AddressRules().objection(host, 443)


def test_a_teredo_address_contains_its_server_and_its_client():
    found = contained(IPv6Address("2001:0:808:404:0:ffff:f5fe:fdfc"))
    assert [str(one) for one in found] == ["8.8.4.4", "10.1.2.3"]
