# mypy: ignore-errors
"""Plants a defect: the last bytes of a large output are not copied to shared memory."""

_LEFT_OUT = 64


def _leave_out(module):
    lend = module.OutputLender.lend

    def lend_shorter(lender, outputs):
        lent = lend(lender, [*outputs[:-1], outputs[-1][:-_LEFT_OUT]])
        return lent and [*lent[:-1], lent[-1]._replace(size_bytes=len(outputs[-1]))]

    module.OutputLender.lend = lend_shorter


HOOKS = {"nereid_executor.core.shared_tensors": _leave_out}
