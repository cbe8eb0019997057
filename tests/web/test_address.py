"""Whose request it is: who may state another address, and which one is then believed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.web.address import EffectiveAddress, budget_key, parse

PROXY = "10.0.0.1"


def effective(trusted: tuple[str, ...], peer: str, **stated: str) -> dict[str, Any]:
    """The environment that the app sees for a request from `peer` with these headers."""
    seen: dict[str, Any] = {}
    environ = {"REMOTE_ADDR": peer, "wsgi.url_scheme": "http", "HTTP_HOST": "hub.example"}
    environ |= {f"HTTP_{name.upper()}": value for name, value in stated.items()}

    def app(environ: dict[str, Any], _start: Any) -> list[bytes]:
        seen.update(environ)
        return []

    EffectiveAddress(app, trusted)(environ, None)
    return seen


def address(trusted: tuple[str, ...], peer: str, forwarded: str) -> str:
    found: str = effective(trusted, peer, x_forwarded_for=forwarded)["REMOTE_ADDR"]
    return found


def test_an_untrusted_peer_is_itself_and_its_headers_are_gone() -> None:
    seen = effective(
        (),
        "198.51.100.7",
        x_forwarded_for="203.0.113.9",
        x_forwarded_proto="https",
        x_forwarded_host="evil.example",
        x_forwarded_port="1",
        x_forwarded_prefix="/x",
        x_real_ip="203.0.113.9",
        forwarded="for=203.0.113.9",
    )
    assert seen["REMOTE_ADDR"] == "198.51.100.7"
    assert seen["wsgi.url_scheme"] == "http"
    assert seen["HTTP_HOST"] == "hub.example"
    assert not [name for name in seen if "FORWARDED" in name or "REAL_IP" in name]


def test_a_trusted_peer_states_address_scheme_and_host() -> None:
    seen = effective(
        ("10.0.0.0/8",),
        PROXY,
        x_forwarded_for="203.0.113.9",
        x_forwarded_proto="https",
        x_forwarded_host="hub.example:8443",
    )
    assert (seen["REMOTE_ADDR"], seen["wsgi.url_scheme"]) == ("203.0.113.9", "https")
    assert seen["HTTP_HOST"] == "hub.example:8443"


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        # What the caller wrote itself stands left of what the proxy added.
        ("1.1.1.1, 203.0.113.9", "203.0.113.9"),
        ("1.1.1.1,203.0.113.9,10.0.0.2", "203.0.113.9"),
        ("1.1.1.1, 203.0.113.9, 10.0.0.3, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        # Entries that cannot be read end the walk: the last good one stands.
        ("203.0.113.9, unknown", PROXY),
        ("203.0.113.9, unknown, 10.0.0.2", "10.0.0.2"),
        ("203.0.113.9,, 10.0.0.2", "10.0.0.2"),
        ("_hidden", PROXY),
        ("", PROXY),
        (" , ", PROXY),
        ("203.0.113.9:1234", "203.0.113.9"),
        ("203.0.113.9:port", PROXY),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1", PROXY),
        ("2001:DB8::1", "2001:db8::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("fe80::1%eth0", PROXY),
        ("203.0.113.999", PROXY),
        ("0203.0.113.9", PROXY),
        ("203.0.113.9\x00", PROXY),
        ("x" * 8192, PROXY),
    ],
)
def test_the_walk_from_the_right(forwarded: str, expected: str) -> None:
    assert address(("10.0.0.0/8",), PROXY, forwarded) == expected


def test_of_many_entries_only_the_last_twenty_are_looked_at() -> None:
    hops = ["203.0.113.9"] + [f"10.0.1.{number}" for number in range(200)]
    assert address(("10.0.0.0/8",), PROXY, ",".join(hops)) == "10.0.1.180"


def test_only_the_proxys_own_scheme_and_host_count() -> None:
    seen = effective(
        (PROXY,), PROXY, x_forwarded_proto="https, http", x_forwarded_host="evil.example, hub.example/../x"
    )
    assert (seen["wsgi.url_scheme"], seen["HTTP_HOST"]) == ("http", "hub.example")


def test_a_socket_peer_is_believed_only_when_named() -> None:
    assert address(("unix",), "", "203.0.113.9") == "203.0.113.9"
    assert address((), "", "203.0.113.9") == "unix"
    assert address(("10.0.0.0/8",), "", "203.0.113.9") == "unix"
    assert address(("unix",), "", "") == "unix"


def test_a_mapped_peer_is_the_ipv4_address() -> None:
    assert address(("10.0.0.1/32",), "::ffff:10.0.0.1", "203.0.113.9") == "203.0.113.9"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("198.51.100.7", "198.51.100.7"),
        (None, "unix"),
    ],
)
def test_budgets_are_shared_within_a_household(one: str | None, other: str) -> None:
    assert budget_key(one) == budget_key(other)


def test_budgets_of_different_networks_are_apart() -> None:
    keys = {budget_key(one) for one in ("2001:db8:1:2::1", "2001:db8:1:3::1", "198.51.100.7", "198.51.100.8", None)}
    assert len(keys) == 5


@given(st.text(max_size=60))
def test_no_text_breaks_the_reading_of_an_address(text: str) -> None:
    found = parse(text)
    assert found is None or parse(str(found)) == found


@given(st.lists(st.text(alphabet="0123456789abcdef.:,[]% x", max_size=40), max_size=5))
def test_no_header_makes_a_proxy_believe_nonsense(parts: list[str]) -> None:
    assert parse(address(("10.0.0.0/8",), PROXY, ",".join(parts))) is not None
