"""Which session gets a model's instances."""

from __future__ import annotations

from nereid_executor.instances.claims.model_claims import Grant, ModelClaims, Rank

A, B, C = "session a", "session b", "session c"
FIRST = Rank(1, "a")


def test_a_free_model_is_its_first_claimants() -> None:
    claims = ModelClaims()
    assert claims.holder("m") is None
    assert claims.claim("m", A, 1, FIRST)
    assert claims.claim("m", A, 2, FIRST)
    assert claims.holder("m") == A
    assert claims.claim("n", B, 1, FIRST)
    # Others wait until the last instance is released.
    assert not claims.claim("m", B, 1, FIRST)
    assert claims.release("m", A, 1) == []
    assert claims.release("m", A, 2) == [Grant(B, 1)]
    assert claims.holder("m") == B
    assert claims.release("m", B, 1) == []
    assert claims.holder("m") is None


def test_the_largest_epoch_and_then_the_largest_name_gets_it() -> None:
    claims = ModelClaims()
    claims.claim("m", A, 1, FIRST)
    # Its epoch has grown meanwhile.
    assert not claims.claim("m", B, 1, Rank(1, "b"))
    assert not claims.claim("m", B, 2, Rank(3, "b"))
    assert not claims.claim("m", C, 5, Rank(3, "c"))
    assert claims.release("m", A, 1) == [Grant(C, 5)]
    # A claim of the former holder waits as any other does.
    assert not claims.claim("m", A, 2, Rank(2, "a"))
    assert claims.release("m", C, 5) == [Grant(B, 1), Grant(B, 2)]
    assert claims.release("m", B, 1) == []
    assert claims.release("m", B, 2) == [Grant(A, 2)]


def test_claims_that_wait_can_be_given_up() -> None:
    claims = ModelClaims()
    claims.claim("m", A, 1, FIRST)
    claims.claim("m", B, 1, FIRST)
    claims.claim("m", B, 2, FIRST)
    claims.claim("m", C, 1, FIRST)
    assert claims.release("m", B, 1) == []
    claims.end_waiting(C)
    claims.end_waiting(C)
    assert claims.release("m", A, 1) == [Grant(B, 2)]
    claims.claim("m", C, 1, FIRST)
    claims.release("m", C, 1)
    assert claims.release("m", B, 2) == []
    assert claims.holder("m") is None


def test_what_is_not_known_is_ignored() -> None:
    claims = ModelClaims()
    assert claims.release("m", A, 1) == []
    claims.claim("m", A, 1, FIRST)
    assert claims.release("m", B, 1) == []
    assert claims.release("m", A, 7) == []
    claims.claim("m", B, 1, FIRST)
    assert claims.release("m", B, 7) == []
    assert claims.holder("m") == A


def test_the_instances_of_a_session_that_is_over_hold_up_nobody_for_ever() -> None:
    claims = ModelClaims()
    claims.claim("m", A, 1, FIRST)
    claims.claim("n", A, 2, FIRST)
    claims.claim("o", C, 2, FIRST)
    claims.claim("m", B, 1, FIRST)
    assert claims.expire(A) == [Grant(B, 1)]
    assert (claims.holder("m"), claims.holder("n"), claims.holder("o")) == (B, None, C)
    # One that finishes after that changes nothing.
    assert claims.release("m", A, 1) == []
    assert claims.holder("m") == B
