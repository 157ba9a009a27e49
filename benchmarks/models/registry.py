"""The models, by the names that the command line accepts."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.models import decoupled, ensemble, minilm, mlp, resnet50
from benchmarks.models.workload import Workload

# Each function makes its model's files below a folder that is kept between runs.
_MAKERS: dict[str, Callable[[Path], Workload]] = {
    "mlp": mlp.workload,
    "python": mlp.python_workload,
    "ensemble": ensemble.workload,
    "decoupled": decoupled.workload,
    "minilm": minilm.workload,
    "resnet50": resnet50.workload,
}
NAMES = tuple(_MAKERS)


def make(name: str, cache: Path) -> Workload:
    """Make the workload of a model.

    Raises:
        BenchError: it could not be made (say, no network for weights).
    """
    return _MAKERS[name](cache)
