"""A limit on a whole blocking call, such as a response that arrives byte by byte."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

# A socket's limit is for each piece; a whole response may take so many times longer.
PIECES: Final = 10
_Result = TypeVar("_Result")


def call_within(limit_s: float, call: Callable[[], _Result]) -> _Result:
    """Return a call's result; raise its exception, or TimeoutError if it takes longer.

    A late call goes on without its caller.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, name="call", daemon=True).start()
    try:
        return done.result(limit_s)
    except TimeoutError:
        if done.done():
            raise
        raise TimeoutError(f"no whole response within {limit_s:g} s") from None
