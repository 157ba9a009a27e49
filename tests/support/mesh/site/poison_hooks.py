# mypy: ignore-errors
"""Memory that is given out to be written has a pattern, as what malloc returns (../poison.py).

numpy keeps small blocks itself and hands them out again with what was in them before. So do pools
of shared memory: whoever still reads a segment that was freed reads the pattern as well.
"""

import os

_BYTE = 0xFF ^ int(os.environ["MALLOC_PERTURB_"])
_BLOCK = bytes([_BYTE]) * (1 << 20)
_MAX_FILLED = 1 << 24


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


def _fill(view):
    """Fill the beginning: first use of memory takes seconds per gigabyte."""
    for place in range(0, min(len(view), _MAX_FILLED), len(_BLOCK)):
        part = view[place : place + len(_BLOCK)]
        part[:] = _BLOCK[: len(part)]


def _poison_segments(module):
    acquire = module.SegmentPool.acquire_segment

    def acquire_segment(pool, size_bytes, user=None):
        segment = acquire(pool, size_bytes, user)
        if segment is not None:
            _fill(segment.view)
        return segment

    module.SegmentPool.acquire_segment = acquire_segment


def _poison_granted(module):
    use = module.GrantedSegment.use

    def fill_and_use(segment):
        # Its state lies behind.
        _fill(segment.view[: segment.memory.size_bytes])
        use(segment)

    module.GrantedSegment.use = fill_and_use


def _poison_requests(module):
    acquire = module.RequestSegmentPool._acquire

    def filled(pool, size):
        segment = acquire(pool, size)
        if segment is not None and segment.view is not None:
            _fill(segment.view)
        return segment

    module.RequestSegmentPool._acquire = filled


_DIRECT = "nereid_executor.backends.python."
_REQUESTS = "nereid_worker.connection.request_segments"
HOOKS = {
    "numpy": _poison,
    "nereid.shm.segments": _poison_segments,
    _DIRECT + "direct.output_segments": _poison_granted,
    # A worker may run a Python without Nereid.
    _REQUESTS: _poison_requests,
    _DIRECT + "worker_site." + _REQUESTS: _poison_requests,
}
