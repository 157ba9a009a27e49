"""Callgrind's profiles: names as numbers, and what belongs to a function itself."""

from __future__ import annotations

from benchmarks.instructions.callgrind import parse_profile

_PROFILE = """\
version: 1
events: Ir
ob=(1) /usr/lib/libpython3.11.so.1.0
fl=(1) ceval.c
fn=(1) _PyEval_EvalFrameDefault
16 400
+2 5
cob=(2) /usr/lib/libc.so.6
cfn=(2) epoll_wait@@GLIBC_2.3
calls=3 0
* 900
-4 10
cfn=(3) _PyObject_Malloc'2
calls=2 16
17 60

ob=(2)
fn=(2)
* 30
fn=(4) plain
0x12 7

totals: 452
"""


def test_costs_and_calls_are_those_of_the_function_itself() -> None:
    profile = parse_profile(_PROFILE.splitlines(keepends=True))
    assert profile.total == 452
    assert profile.by_object() == {"libpython3.11.so.1.0": 415, "libc.so.6": 37}
    assert profile.by_function() == {
        "_PyEval_EvalFrameDefault": 415,
        "epoll_wait@@GLIBC_2.3": 30,
        "plain": 7,
    }
    assert profile.system_calls() == {"epoll_wait": 3}
    assert profile.allocations == 2
