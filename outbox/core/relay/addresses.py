"""Which addresses a relay may connect to. Pure.

Users name the URLs of endpoints, and the relay stands inside the network. So it connects only to public addresses,
and to networks that an operator allows. The client asks for each address before it connects, so a name that resolves
to another address the next time changes nothing. Of an IPv6 address that contains IPv4 addresses, those are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PRIVATE_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_PRIVATE_6 = tuple(IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_MAPPED, _NAT64 = IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")
_6TO4, _TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")
_LOW_32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class AddressRules:
    allowed: tuple[Network, ...] = ()
    """Networks that are private, and to which the relay may connect all the same."""
    ports: frozenset[int] = frozenset({443})

    def objection(self, host: str, port: int) -> str:
        """Why the relay may not connect there; empty: it may. `host` is an address, not a name."""
        if port not in self.ports:
            return f"port {port} is not one of those in RELAY_PORTS"
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return f"{host!r} is not an IP address"
        if self._is_allowed(address):
            return ""
        return f"{address} is not a public address, and not in RELAY_ALLOW_NETWORKS"

    def _is_allowed(self, address: Address) -> bool:
        if any(address in network for network in self.allowed):
            return True
        if isinstance(address, IPv4Address):
            return not any(address in network for network in _PRIVATE_4)
        if inner := list(contained(address)):
            return all(self._is_allowed(one) for one in inner)
        return address in _PUBLIC_6 and not any(address in network for network in _PRIVATE_6)


def contained(address: IPv6Address) -> Iterator[IPv4Address]:
    """IPv4 addresses to which packets for this address may go in the end."""
    number = int(address)
    if address in _MAPPED or address in _NAT64:
        yield IPv4Address(number & _LOW_32)
    elif address in _6TO4:
        yield IPv4Address(number >> 80 & _LOW_32)
    elif address in _TEREDO:
        yield IPv4Address(number >> 64 & _LOW_32)  # the server
        yield IPv4Address(~number & _LOW_32)  # the client


def network(text: str) -> Network:
    """Raises ValueError."""
    return ip_network(text)
