"""Plants one defect into the processes of a mesh that is started with this folder on its path.

PLANTED_DEFECT names it. Python imports this module at its start; the module that a defect is in is
changed when it is imported.
"""

import importlib.abc
import importlib.machinery
import itertools
import os
import sys


def _not_written(module):
    """The end of an output is memory that nobody has written."""
    whole = module.LoneRun.pieces_of

    def pieces_of(run, arrays):
        pieces = whole(run, arrays)
        return pieces and [*pieces[:-1], bytes(pieces[-1])[:-4] + b"\xa5" * 4]

    module.LoneRun.pieces_of = pieces_of


def _one_late(module):
    """A batch of several requests is joined one element late."""
    joined = module.join_rows

    def join_rows(raws):
        raw = bytes(joined(raws))
        return raw[4:] + raw[:4]

    module.join_rows = join_rows


def _stale_head(module):
    """The head of an earlier response is sent, whatever the shapes are now."""
    checked, kept = module.check_outputs, {}

    def check_outputs(signature, gathered, arrays):
        return kept.setdefault(signature.model_name, checked(signature, gathered, arrays))

    module.check_outputs = check_outputs


def _swapped(module):
    """The first two requests of a batch get each other's inputs."""
    joined = module.join_rows
    module.join_rows = lambda raws: joined((raws[1], raws[0], *raws[2:]))


def _kept_array_changed(module):
    """Requests with tensors of one size are read into the same memory."""
    made, kept = module.Tensor.of_raw, {}

    def of_raw(name, datatype, shape, raw):
        memory = kept.setdefault(len(raw), bytearray(len(raw)))
        memory[:] = raw
        return made(name, datatype, shape, memory)

    module.Tensor.of_raw = of_raw


def _view_freed(module):
    """Shared memory with a response is used for the next one, though nobody has read it."""
    whole = module.OutputLender.lend

    def lend(lender, outputs):
        references = whole(lender, outputs)
        for name in {reference.segment_name for reference in references or ()}:
            lender.free_segment(name)
        return references

    module.OutputLender.lend = lend


def _wrong_endianness(module):
    """Numbers in JSON become bytes in the other order."""
    whole = module.to_raw

    def to_raw(data, name, datatype, shape):
        raw = whole(data, name, datatype, shape)
        size = {"FP32": 4, "INT32": 4, "INT64": 8}.get(datatype, 1)
        return b"".join(raw[at : at + size][::-1] for at in range(0, len(raw), size))

    module.to_raw = to_raw


def _lost_count(module):
    """Each seventh request is missing in the statistics."""
    whole, numbers = module.ModelStatistics.record_end, itertools.count(1)

    def record_end(statistics, *arguments):
        if next(numbers) % 7:
            whole(statistics, *arguments)

    module.ModelStatistics.record_end = record_end


_BATCH = "nereid.services.executor.batch."
DEFECTS = {
    "a buffer that is not written": (_BATCH + "lone_runs", _not_written),
    "one element late": (_BATCH + "arrays", _one_late),
    "a stale head": (_BATCH + "arrays", _stale_head),
    "two members swapped": (_BATCH + "arrays", _swapped),
    "a kept array changed": ("nereid_worker.pb_utils.tensors", _kept_array_changed),
    "a view freed": ("nereid.services.executor.shared_tensors", _view_freed),
    "a wrong endianness": ("nereid.services.gateway.http.json.tensor_data", _wrong_endianness),
    "a count lost": ("nereid.services.scheduler.observability.statistics", _lost_count),
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, and changes it once it is imported."""

    def __init__(self, name, plant):
        self._name, self._plant = name, plant

    def find_spec(self, name, path, target=None):
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._plant(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("PLANTED_DEFECT"):
    sys.meta_path.insert(0, _Finder(*DEFECTS[os.environ["PLANTED_DEFECT"]]))
