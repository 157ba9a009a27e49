"""Graphs as ONNX Runtime has optimised them, kept in files, so that later loads need not do it.

A file is for exactly one model, version of ONNX Runtime, level and kind of processor: layouts are
chosen for the processor. The directory may be shared, read-only, or emptied at any time.

It assumes that the model's file is all that a load reads, which `kept_graph` checks: an optimised
graph looks for external weights beside itself.
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

from nereid_executor.backends.onnx.model_graph import has_external_data
from nereid_executor.backends.onnx.session_options import CPU, Provider
from nereid_executor.core.files.file_digests import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_log = logging.getLogger(__name__)

SETTING: Final = "optimized-graph-directory"
# Larger graphs do not fit into one file of protobuf's.
_LARGEST_BYTES: Final = 1 << 30


def kept_graph(
    settings: Mapping[str, str],
    path: Path,
    model: str | bytes,
    options: ort.SessionOptions,
    chosen: Sequence[Provider],
) -> Path | None:
    """Where the optimised graph of a model is kept, or would be; None: it is not.

    path: the model's file. model: what is loaded, which may be a part of it.
    """
    directory = settings.get(SETTING)
    level = options.graph_optimization_level
    if (
        not directory
        or [name for name, _ in chosen] != [CPU]
        or level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        or path.stat().st_size > _LARGEST_BYTES
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
    """A session on the CPU, from the kept graph if there is one; else it is kept now."""
    level = options.graph_optimization_level
    if kept.exists():
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return _session(str(kept), options)
        except Exception as error:
            _log.warning("the optimised graph %s cannot be loaded: %s", kept, error)
        finally:
            options.graph_optimization_level = level
    # Not the final name, which others may read meanwhile.
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
        # The model's own error, if it has one, comes again.
        session = _session(model, options)
        _log.warning("the optimised graph %s cannot be kept: %s", kept, error)
    finally:
        options.optimized_model_filepath = ""
    return session


def _session(model: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(model, options, providers=[CPU], enable_fallback=False)


@functools.cache
def _processor() -> str:
    """What the processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    wanted = ("model name", "flags", "Features", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(wanted)}))
