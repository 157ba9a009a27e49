# mypy: ignore-errors
"""numpy's arrays that are allocated empty have a pattern, as what malloc returns (../poison.py).

numpy keeps small blocks itself and hands them out again with what was in them before.
"""

import os

_BYTE = 0xFF ^ int(os.environ["MALLOC_PERTURB_"])


def _filling(allocate):
    def empty(*args, **kwargs):
        array = allocate(*args, **kwargs)
        if array.nbytes and not array.dtype.hasobject:
            # A view: an array that was just made has no gaps.
            array.ravel(order="K").view("u1").fill(_BYTE)
        return array

    return empty


def _poison(numpy):
    numpy.empty, numpy.empty_like = _filling(numpy.empty), _filling(numpy.empty_like)


HOOKS = {"numpy": _poison}
