"""Graphs that ONNX Runtime has optimised, kept in files for later loads.

A file is valid for one model, ONNX Runtime version, optimisation level and kind of processor,
because ONNX Runtime chooses data layouts for the processor. The directory may be shared, read-only,
or emptied at any time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import onnxruntime as ort

from nereid.backends.file_digests import digest_of
from nereid_executor.backends.onnx.model_graph import has_external_data
from nereid_executor.backends.onnx.session_options import CPU, Provider

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_log = logging.getLogger(__name__)

SETTING: Final = "optimized-graph-directory"
# A larger graph may not fit into one protobuf message.
_MAX_BYTES: Final = 1 << 30


def kept_graph(
    settings: Mapping[str, str],
    path: Path,
    model: str | bytes,
    options: ort.SessionOptions,
    chosen: Sequence[Provider],
) -> Path | None:
    """Return the path for a model's optimised graph, or `None` if it must not be kept.

    A model with external weights is not kept: its graph would look for them in its own directory.
    """
    directory = settings.get(SETTING)
    level = options.graph_optimization_level
    if (
        not directory
        or [name for name, _ in chosen] != [CPU]
        or level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        or path.stat().st_size > _MAX_BYTES
        or has_external_data(path)
    ):
        return None
    content = hashlib.sha256(model).digest() if isinstance(model, bytes) else digest_of(path)
    digest = hashlib.sha256(content)
    digest.update(f"{ort.__version__} {level} {_processor()}".encode())
    return Path(directory, f"{digest.hexdigest()[:32]}.onnx")


def open_session(
    kept: Path, model: str | bytes, options: ort.SessionOptions
) -> ort.InferenceSession:
    """Return a CPU session from the kept graph. If there is none yet, keep the graph."""
    level = options.graph_optimization_level
    if kept.exists():
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return _session(str(kept), options)
        except Exception as error:
            _log.warning("the optimised graph %s cannot be loaded: %s", kept, error)
        finally:
            options.graph_optimization_level = level
    # Other processes may read the final file, so the graph is first written to another one.
    written = kept.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    options.optimized_model_filepath = str(written)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        session = _session(model, options)
        written.replace(kept)
    except Exception as error:
        with contextlib.suppress(OSError):
            written.unlink()
        options.optimized_model_filepath = ""
        # If the model itself is at fault, this call raises the error again.
        session = _session(model, options)
        _log.warning("the optimised graph %s cannot be kept: %s", kept, error)
    finally:
        options.optimized_model_filepath = ""
    return session


def _session(model: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(model, options, providers=[CPU], enable_fallback=False)


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    wanted = ("model name", "flags", "Features", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(wanted)}))
