"""Text of errors, made safe before it meets the database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.queue import text


@given(st.text(st.characters(codec=None, categories=None), max_size=3000))
def test_any_text_becomes_text_that_can_be_stored(given_text: str) -> None:
    cleaned = text.clean(given_text)
    assert len(cleaned) <= text.MAX_ERROR
    assert "\x00" not in cleaned
    cleaned.encode("utf-8")


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("a\x00b", "a\N{REPLACEMENT CHARACTER}b"),
        ("a\ud800b", "a?b"),
        ("x" * 10_000_000, "x" * 1998 + " …"),
        ("x" * 2000, "x" * 2000),
        ("postgresql://hub:s3cret@db/hub refused", "postgresql://hub:***@db/hub refused"),
        ("redis://:s3cret@cache", "redis://:***@cache"),
        ("https://hub:s3/cr@et@host/x", "https://hub:***@host/x"),
        ("PASSWORD=s3cret and more", "PASSWORD=*** and more"),
        ("{'client_secret': 's3cret'}", "{'client_secret': ***"),
        ('{"api_key":"s3cret"}', '{"api_key":***'),
        ("Authorization: Bearer s3cret", "Authorization: ***"),
        ("authorization: basic s3cret, then", "authorization: *** then"),
        ("got Bearer s3cret-t0ken from", "got Bearer *** from"),
        ("?sig=s3cret&sv=2", "?sig=***"),
        ("the password is too short", "the password is too short"),
        ("the bearer is absent", "the bearer is absent"),
    ],
)
def test_what_cannot_be_stored_or_must_not_be_told_is_replaced(dirty: str, clean: str) -> None:
    assert text.clean(dirty) == clean


def test_a_secret_at_the_cut_is_masked_too() -> None:
    assert "s3cret" not in text.clean("x" * 1980 + " password=s3cret-and-long" + "y" * 9000)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_without_a_message_of_its_own_is_described() -> None:
    assert text.describe(Unspeakable()) == "Unspeakable: (its message cannot be shown)"
    assert text.describe(ValueError("too\x00 \udfff late")) == "ValueError: too\N{REPLACEMENT CHARACTER} ? late"
