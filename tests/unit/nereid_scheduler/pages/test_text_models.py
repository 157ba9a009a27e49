"""Which versions' files a scheduler keeps for gateways."""

from nereid_scheduler.pages.text_models import KeptFiles

A, B, C = b"a", b"b", b"c"


def files(size: int) -> dict[str, bytes]:
    return {"tokenizer.json": bytes(size - 1), "text.json": b"1"}


def test_those_that_were_asked_for_last_are_kept() -> None:
    kept = KeptFiles(10)
    assert kept.find(A) is None
    kept.keep(A, files(5))
    kept.keep(B, files(5))
    # Another gateway asked for them at the same time.
    kept.keep(B, files(5))
    assert kept.find(A) == files(5)
    kept.keep(C, files(4))
    assert (kept.find(A), kept.find(B), kept.find(C)) == (files(5), None, files(4))


def test_those_that_are_too_large_are_not() -> None:
    kept = KeptFiles(10)
    kept.keep(B, files(10))
    kept.keep(A, files(11))
    assert (kept.find(A), kept.find(B)) == (None, files(10))
