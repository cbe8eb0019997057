"""Whose request it is: the effective remote address, scheme and host behind trusted proxies.

Only a peer inside HUB_TRUSTED_PROXIES may state another address. `X-Forwarded-For` is then walked from the right: the
first valid address that is no trusted proxy is the caller's. From any other peer all forwarding headers are dropped, so
nothing behind this can believe them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# The most entries of X-Forwarded-For that are looked at, from the right.
MAX_HOPS = 20
# What a unix-socket peer without a stated address is called.
UNIX = "unix"
FORWARDING = (
    "HTTP_X_FORWARDED_FOR",
    "HTTP_X_FORWARDED_PROTO",
    "HTTP_X_FORWARDED_HOST",
    "HTTP_X_FORWARDED_PORT",
    "HTTP_X_FORWARDED_PREFIX",
    "HTTP_X_FORWARDED_SSL",
    "HTTP_X_REAL_IP",
    "HTTP_FORWARDED",
)
HOST = re.compile(r"^(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z.-]{1,253})(:[0-9]{1,5})?$")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class EffectiveAddress:
    """WSGI middleware that sets REMOTE_ADDR, scheme and host to what may be believed."""

    def __init__(self, app: Wsgi, trusted: Sequence[str]) -> None:
        self._app = app
        self._trust_unix = UNIX in trusted
        self._networks = [ipaddress.ip_network(entry, strict=False) for entry in trusted if entry != UNIX]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Rewrite the environment, then hand over."""
        stated = {name: environ.pop(name) for name in FORWARDING if name in environ}
        peer = parse(environ.get("REMOTE_ADDR") or "")
        environ["REMOTE_ADDR"] = str(peer) if peer else UNIX
        if self._trusts(peer):
            environ["REMOTE_ADDR"] = self._caller(environ["REMOTE_ADDR"], stated.get("HTTP_X_FORWARDED_FOR", ""))
            _believe_scheme_and_host(environ, stated)
        return self._app(environ, start_response)

    def _trusts(self, peer: Address | None) -> bool:
        if peer is None:
            return self._trust_unix
        return any(peer.version == network.version and peer in network for network in self._networks)

    def _caller(self, peer: str, forwarded: str) -> str:
        good = peer
        for entry in reversed(forwarded.split(",")[-MAX_HOPS:]):
            address = parse(entry.strip())
            if address is None:
                # Nothing left of an entry that cannot be read can be relied on: the last good one stands.
                break
            good = str(address)
            if not self._trusts(address):
                break
        return good


def parse(text: str) -> Address | None:
    """The address in `text`, which may have a port or brackets; None if there is none.

    An IPv4 address mapped into IPv6 is that IPv4 address; zone ids are refused.
    """
    if text.startswith("["):
        text, bracket, port = text[1:].partition("]")
        if not bracket or (port and not re.fullmatch(r":[0-9]{1,5}", port)):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not re.fullmatch(r"[0-9]{1,5}", port):
            return None
    if "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def budget_key(address: str | None) -> str:
    """What an address's budgets are counted by: the address, or the /64 of an IPv6 one, which one household shares."""
    parsed = parse(address or "")
    if parsed is None:
        return UNIX
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _believe_scheme_and_host(environ: dict[str, Any], stated: dict[str, str]) -> None:
    # The rightmost value is the one that the trusted peer itself wrote.
    scheme = stated.get("HTTP_X_FORWARDED_PROTO", "").rpartition(",")[2].strip().lower()
    if scheme in ("http", "https"):
        environ["wsgi.url_scheme"] = scheme
    host = stated.get("HTTP_X_FORWARDED_HOST", "").rpartition(",")[2].strip()
    if HOST.match(host):
        environ["HTTP_HOST"] = host
