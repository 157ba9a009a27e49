"""How flags are declared, and the parsers of their texts."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from nereid.config import flags
from nereid.config.flags import Topic, declared_flags, flags_by_topic


@dataclass(frozen=True, kw_only=True)
class Log:
    """Flags of one topic."""

    TOPIC: ClassVar = Topic.LOGGING

    verbose: bool = flags.flag(False, "more", flags.boolean)


@dataclass(frozen=True, kw_only=True)
class Front(Log):
    """Flags of another, beside inherited ones."""

    TOPIC: ClassVar = Topic.HTTP

    port: int = flags.flag(..., "the port", flags.port)
    names: tuple[str, ...] = flags.flag(("a", "b"), "names", repeated=True)


@dataclass(frozen=True, kw_only=True)
class Other:
    """Flags without a topic."""

    verbose: int = flags.flag(3, "another's", flags.integer(0))
    label: str | None = flags.flag(None, "a label")


def test_a_flag_belongs_to_the_topic_of_the_class_that_declares_it() -> None:
    topics = {each.name: each.topic for each in declared_flags(Front, Other)}
    assert topics == {
        "--verbose": Topic.LOGGING,
        "--port": Topic.HTTP,
        "--names": Topic.HTTP,
        "--label": None,
    }


def test_topics_come_in_their_order_and_flags_without_one_last() -> None:
    groups = flags_by_topic(declared_flags(Other, Front))
    assert [topic for topic, _ in groups] == [Topic.HTTP, None]
    groups = flags_by_topic(declared_flags(Front, Other))
    assert [topic for topic, _ in groups] == [Topic.HTTP, Topic.LOGGING, None]


def test_what_a_flag_says_of_itself() -> None:
    verbose, port, names, label = declared_flags(Front, Other)
    assert (verbose.variable, verbose.default_text) == ("NEREID_VERBOSE", "false")
    assert (port.required, port.default_text) == (True, "")
    assert (names.required, names.default_text) == (False, "a, b")
    assert (label.required, label.default_text) == (False, "")


@pytest.mark.parametrize("text", ["unix:", "host:", ":80", "host:80x", "h:99999", "host"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        flags.address(text)


@pytest.mark.parametrize("text", ["unix:/s", "host:80", "[::1]:8001", "0.0.0.0:0"])
def test_good_addresses_are_accepted_unchanged(text: str) -> None:
    assert flags.address(text) == text


@pytest.mark.parametrize(
    ("interface", "listens"),
    [("0.0.0.0", "0.0.0.0:80"), ("::", "[::]:80"), ("[::1]", "[::1]:80"), ("unix:/s", "unix:/s")],
)
def test_an_interface_becomes_an_address(interface: str, listens: str) -> None:
    assert flags.listening_address(interface, 80) == listens


@pytest.mark.parametrize("text", ["x", "nan", "inf"])
def test_bad_seconds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        flags.seconds(text)


def test_bad_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        flags.integer(3)("2")
    with pytest.raises(ValueError, match="expected a whole number"):
        flags.integer(3)("x")
