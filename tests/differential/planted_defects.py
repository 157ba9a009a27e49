# mypy: ignore-errors
"""Plants the defect that PLANTED_DEFECT names into a mesh's processes (tests/support/mesh/site)."""

import itertools
import os


def _not_written(module):
    """The end of an output is memory that nobody has written."""
    whole = module._known_pieces

    def known_pieces(known, arrays):
        pieces = whole(known, arrays)
        return pieces and [*pieces[:-1], bytes(pieces[-1])[:-4] + b"\xe4" * 4]

    module._known_pieces = known_pieces


def _shifted(module):
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
    whole, numbers = module.ModelStatistics.record_success, itertools.count(1)

    def record_success(statistics, *arguments):
        if next(numbers) % 7:
            whole(statistics, *arguments)

    module.ModelStatistics.record_success = record_success


_WORKER = "nereid_executor.backends.python.worker_site.nereid_worker."
_BATCH = "nereid_executor.batch."
_DEFECTS = {
    "a buffer that is not written": (_BATCH + "arrays", _not_written),
    "one element late": (_BATCH + "arrays", _shifted),
    "a stale head": (_BATCH + "arrays", _stale_head),
    "two members swapped": (_BATCH + "arrays", _swapped),
    "a kept array changed": (_WORKER + "pb_utils.tensors", _kept_array_changed),
    "a view freed": ("nereid_executor.core.shared_tensors", _view_freed),
    "a wrong endianness": ("nereid_gateway.fronts.http.json.tensor_data", _wrong_endianness),
    "a count lost": ("nereid_scheduler.core.measurements.statistics", _lost_count),
}
HOOKS = dict([_DEFECTS[os.environ["PLANTED_DEFECT"]]])
