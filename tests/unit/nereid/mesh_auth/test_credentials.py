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
    return CredentialVerifier(TOKEN, clock)


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
    verifier = CredentialVerifier(MeshToken(TOKEN.role_token(Role.SCHEDULER)), clock)
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
    verifier = CredentialVerifier(TOKEN, clock)
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
    verifier = CredentialVerifier(TOKEN, clock, max_nonces=10)
    first = credential(clock)
    verifier.verify(first, JOIN)
    for _ in range(10):
        clock.now += 0.01
        verifier.verify(credential(clock), JOIN)
    assert refusal(verifier, first).transient


@pytest.mark.parametrize("jump_s", [3600, -3600, 12, -12])
def test_a_clock_that_jumps_there_and_back_opens_no_way_for_a_replay(
    verifier: CredentialVerifier, clock: Clock, jump_s: float
) -> None:
    clock.now += 1
    first = credential(clock)
    verifier.verify(first, JOIN)
    clock.now += jump_s
    refusal(verifier, first)
    clock.now += 1
    second = credential(clock)
    verifier.verify(second, JOIN)
    clock.now -= jump_s
    refusal(verifier, first)
    clock.now += 1
    # A new credential is good at once.
    assert verifier.verify(credential(clock), JOIN) is Role.EXECUTOR
    for text in (first, second):
        refusal(verifier, text)
    # Also when the clock comes to the other time by itself.
    clock.now += jump_s
    refusal(verifier, second)


def test_a_clock_that_was_ahead_at_the_start_closes_the_mesh_to_nobody(clock: Clock) -> None:
    clock.now += 3600
    verifier = CredentialVerifier(TOKEN, clock, max_nonces=10)
    verifier.verify(credential(clock), JOIN)
    clock.now -= 3600
    for _ in range(30):
        clock.now += 0.01
        assert verifier.verify(credential(clock), JOIN) is Role.EXECUTOR


def test_a_clock_that_is_set_back_closes_the_mesh_to_nobody(
    verifier: CredentialVerifier, clock: Clock
) -> None:
    """After hours, whose nonces are forgotten."""
    for _ in range(4):
        clock.now += 4
        verifier.verify(credential(clock), JOIN)
    used = [credential(clock) for _ in range(20)]
    for text in used:
        verifier.verify(text, JOIN)
    clock.now -= 12
    for _ in range(6):
        clock.now += 2
        assert verifier.verify(credential(clock), JOIN) is Role.EXECUTOR
        for text in used:
            assert refusal(verifier, text)


def test_jumps_without_end_cost_no_memory(clock: Clock) -> None:
    verifier = CredentialVerifier(TOKEN, clock, max_nonces=10)
    for _ in range(100):
        clock.now -= 100
        verifier.verify(credential(clock), JOIN)
    assert len(verifier._future) <= 10


def test_former_tokens_are_accepted_until_they_are_not(clock: Clock) -> None:
    former, new = TOKEN, MeshToken("another horse and battery")
    verifier = CredentialVerifier(former, clock)

    def accepted(token: MeshToken) -> bool:
        try:
            return verifier.verify(credential(clock, token=token), JOIN) is Role.EXECUTOR
        except CredentialError:
            return False

    assert (accepted(former), accepted(new)) == (True, False)
    verifier.accept((former, new))
    assert (accepted(former), accepted(new)) == (True, True)
    verifier.accept((new,))
    assert (accepted(former), accepted(new)) == (False, True)


def test_a_caller_uses_the_present_key(clock: Clock, verifier: CredentialVerifier) -> None:
    present = [MeshToken("another horse and battery").key(Role.EXECUTOR), TOKEN.key(Role.EXECUTOR)]
    credentials = Credentials(Role.EXECUTOR, lambda: present.pop() or b"", clock)
    ((_, text),) = credentials.metadata(JOIN)
    assert verifier.verify(text, JOIN) is Role.EXECUTOR
    ((_, text),) = credentials.metadata(JOIN)
    with pytest.raises(CredentialError):
        verifier.verify(text, JOIN)
