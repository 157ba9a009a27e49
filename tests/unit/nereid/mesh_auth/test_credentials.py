"""Credentials: good for one call, of one method, within half a minute."""

from __future__ import annotations

import pytest

from nereid.mesh_auth.credentials import (
    AUTH_KEY,
    CredentialError,
    Credentials,
    CredentialVerifier,
)
from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.tokens import MeshToken

TOKEN = MeshToken("correct horse battery staple")
JOIN = "/nereid.v1.Scheduler/Join"


class Clock:
    """A wall clock that the test sets."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(clock: Clock) -> CredentialVerifier:
    return make_verifier(clock)


def make_verifier(
    clock: Clock, token: MeshToken = TOKEN, max_nonces: int = 1000
) -> CredentialVerifier:
    # The other clock stands still: however slow the test is, its own clock was not set back.
    return CredentialVerifier(token, clock, max_nonces, monotonic=Clock(0.0))


def credential(
    clock: Clock, role: Role = Role.EXECUTOR, token: MeshToken = TOKEN, path: str = JOIN
) -> str:
    key = token.key(role)
    assert key is not None
    ((name, text),) = Credentials(role, key, clock).metadata(path)
    assert name == AUTH_KEY
    return text


def refusal(verifier: CredentialVerifier, text: str, path: str = JOIN) -> CredentialError:
    with pytest.raises(CredentialError) as raised:
        verifier.verify(text, path)
    return raised.value


def test_it_proves_the_role_once(verifier: CredentialVerifier, clock: Clock) -> None:
    text = credential(clock)
    assert verifier.verify(text, JOIN) is Role.EXECUTOR
    assert "replay" in refusal(verifier, text).reason
    assert verifier.verify(credential(clock, Role.GATEWAY), JOIN) is Role.GATEWAY


def test_it_is_good_for_its_method_alone(verifier: CredentialVerifier, clock: Clock) -> None:
    text = credential(clock)
    assert "another token" in refusal(verifier, text, "/nereid.v1.Scheduler/Infer").reason
    # What failed has used nothing up.
    assert verifier.verify(text, JOIN) is Role.EXECUTOR


def test_no_part_of_it_can_be_changed(verifier: CredentialVerifier, clock: Clock) -> None:
    text = credential(clock)
    version, role, stamp, nonce, mac = text.split(" ")
    other = nonce[:-1] + ("y" if nonce.endswith("x") else "x")
    for forged in (
        f"{version} gateway {stamp} {nonce} {mac}",
        f"{version} {role} {int(stamp) + 1} {nonce} {mac}",
        f"{version} {role} 0{stamp} {nonce} {mac}",
        f"{version} {role} {stamp} {other} {mac}",
        f"{version} {role} {stamp} {nonce} {mac[:-2]}",
        f"{version} nobody {stamp} {nonce} {mac}",
    ):
        assert "another token" in refusal(verifier, forged).reason


@pytest.mark.parametrize("text", ["", "v1", "v1 executor x y z", "v2 executor 1 y z", "é " * 4])
def test_what_is_no_credential(verifier: CredentialVerifier, text: str) -> None:
    assert "malformed" in refusal(verifier, text).reason


def test_another_meshs_token(verifier: CredentialVerifier, clock: Clock) -> None:
    other = MeshToken("another mesh's own token")
    assert "another token" in refusal(verifier, credential(clock, token=other)).reason


def test_a_role_token_checks_its_own_role_alone(clock: Clock) -> None:
    verifier = make_verifier(clock, MeshToken(TOKEN.role_token(Role.SCHEDULER)))
    assert verifier.verify(credential(clock, Role.SCHEDULER), JOIN) is Role.SCHEDULER
    assert "another token" in refusal(verifier, credential(clock, Role.OPERATOR)).reason


@pytest.mark.parametrize(("ahead_s", "way"), [(31, "31 s ahead of"), (-45, "45 s behind")])
def test_clocks_that_differ_too_much(
    verifier: CredentialVerifier, clock: Clock, ahead_s: float, way: str
) -> None:
    text = credential(Clock(clock.now + ahead_s))
    assert way in refusal(verifier, text).reason


def test_a_credential_from_before_the_start_may_have_been_used_then(clock: Clock) -> None:
    text = credential(clock)
    clock.now += 1
    verifier = make_verifier(clock)
    assert refusal(verifier, text).transient
    assert verifier.verify(credential(clock), JOIN) is Role.EXECUTOR


def test_a_nonce_is_kept_for_as_long_as_its_credential_is_good(
    verifier: CredentialVerifier, clock: Clock
) -> None:
    # By a clock that is ahead: it is good for almost twice the window.
    text = credential(Clock(clock.now + 29))
    verifier.verify(text, JOIN)
    for _ in range(58):
        clock.now += 1
        verifier.verify(credential(clock), JOIN)
        assert "replay" in refusal(verifier, text).reason
    clock.now += 2
    assert "behind" in refusal(verifier, text).reason


def test_a_flood_of_calls_does_not_open_the_way_for_a_replay(clock: Clock) -> None:
    verifier = make_verifier(clock, max_nonces=10)
    first = credential(clock)
    verifier.verify(first, JOIN)
    for _ in range(10):
        clock.now += 0.01
        verifier.verify(credential(clock), JOIN)
    assert refusal(verifier, first).transient


@pytest.mark.parametrize("hours", [1, 24])
def test_a_clock_that_was_set_back_is_followed(clock: Clock, hours: int) -> None:
    verifier = make_verifier(clock, max_nonces=10)
    used = credential(clock)
    verifier.verify(used, JOIN)
    clock.now -= hours * 3600.0
    before = credential(clock)
    clock.now += 0.01
    # As at a start: what was made before may have been used.
    assert refusal(verifier, before).transient
    # The credentials that it had used before do not end the others.
    for _ in range(30):
        clock.now += 0.01
        text = credential(clock)
        assert verifier.verify(text, JOIN) is Role.EXECUTOR
        assert "replay" in refusal(verifier, text).reason
    assert "ahead of" in refusal(verifier, used).reason


def test_a_clock_that_was_set_back_a_little_opens_no_way_for_a_replay(clock: Clock) -> None:
    verifier = make_verifier(clock)
    text = credential(clock)
    verifier.verify(text, JOIN)
    clock.now -= 20
    assert "replay" in refusal(verifier, text).reason


def test_a_clock_that_was_set_forward_is_followed(
    verifier: CredentialVerifier, clock: Clock
) -> None:
    verifier.verify(credential(clock), JOIN)
    clock.now += 86400.0
    assert verifier.verify(credential(clock), JOIN) is Role.EXECUTOR
