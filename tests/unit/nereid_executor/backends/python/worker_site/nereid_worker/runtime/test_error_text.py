"""Exceptions of models, as clients and the log get them."""

from typing import Any

import pytest

from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils import api
from nereid_executor.backends.python.worker_site.nereid_worker.runtime import (
    error_text as text_module,
)
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.error_text import (
    ModelMisuse,
    error_text,
    explain_errors,
    traceback_text,
)

# Models have no types.
pb: Any = api


def raised(source: str) -> BaseException:
    """What the source raises, without the frame of this file, which is no model."""
    with pytest.raises(Exception) as caught:
        exec(compile(source, "model.py", "exec"), {"pb": pb})
    trace = caught.tb.tb_next
    return caught.value.with_traceback(trace)


def test_the_log_gets_the_traceback_as_python_prints_it() -> None:
    text = traceback_text(raised("def f():\n    raise ValueError('\\ud800 no')\nf()"))
    assert text.splitlines() == [
        "Traceback (most recent call last):",
        '  File "model.py", line 3, in <module>',
        '  File "model.py", line 2, in f',
        "ValueError: \\ud800 no",
    ]


def test_the_workers_own_frames_above_the_model_are_left_out() -> None:
    # The innermost frame is the worker's, and so is the outermost that is left.
    error = raised("pb.Tensor(1, None)")
    assert error.__traceback__ is not None
    own = error.with_traceback(error.__traceback__.tb_next)
    assert traceback_text(own) == "TypeError: Tensor(): name: expected a text, got int"


def test_misuse_of_the_api_is_its_text() -> None:
    assert traceback_text(ModelMisuse("Expected a list")) == "Expected a list"


def test_errors_of_the_system_are_explained_to_confined_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Libraries raise errors of their own for them."""
    refused = "try:\n    raise PermissionError(13, 'no')\nexcept OSError as error:\n    "
    sources = (
        "raise PermissionError(13, 'no')",
        refused + "raise RuntimeError('why') from error",
        refused + "raise RuntimeError('why')",
    )
    for source in sources:
        assert "(ask)" not in error_text(raised(source))
    monkeypatch.setattr(text_module, "_advice", {})
    explain_errors({"13": "ask"})
    for source in sources:
        assert error_text(raised(source)).splitlines()[0].endswith((" no (ask)", "why (ask)"))
    assert "(ask)" not in error_text(raised("raise FileNotFoundError(2, 'no')"))
    circle = raised("raise ValueError('x')")
    circle.__cause__ = circle
    assert error_text(circle).startswith("ValueError: x")
