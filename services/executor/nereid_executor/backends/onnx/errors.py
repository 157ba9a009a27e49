"""Translation of ONNX Runtime's exceptions to Nereid's errors."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from nereid.core.errors import Internal, cause_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# ONNX Runtime's exceptions have no common base class, and releases add some.
ORT_ERRORS: Final[tuple[type[Exception], ...]] = (
    *(
        each
        for each in vars(ort_errors).values()
        if isinstance(each, type) and issubclass(each, Exception)
    ),
    RuntimeError,
    ValueError,
)
_ERROR_TEXT: Final = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)


@contextmanager
def translated_errors(prefix: str = "") -> Iterator[None]:
    """Raise Internal for any ONNX Runtime error within the context. `prefix` begins the text."""
    try:
        yield
    except ORT_ERRORS as error:
        raise Internal(prefix + error_text(error)) from error


def error_text(error: BaseException) -> str:
    """Return the text that clients see for an exception of ONNX Runtime."""
    match = _ERROR_TEXT.match(str(error))
    if match is None:
        return f"onnx runtime error: {cause_of(error)}"
    return f"onnx runtime error {match[1]}: {match[2].strip()}"
