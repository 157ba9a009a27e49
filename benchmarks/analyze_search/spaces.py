"""Search spaces of the models. They have so few candidates that all can be measured.

The module holds no state and does no I/O.
"""

from benchmarks import resnet50
from benchmarks.models import mlp
from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, Setting
from nereid_analyze.space.space import Space

_DELAYS_US = (0, 500, 2000)
_THREADS = "parameters.intra_op_thread_count"


def _of_perceptron() -> Space:
    name = mlp.NAME
    return Space(
        (
            Setting(name, INSTANCES, (1, 2, 3, 4), 1),
            Setting(name, MAX_BATCH, (4, 8, 16, 64), mlp.MAX_BATCH_SIZE),
            Setting(name, DELAY, _DELAYS_US, 0),
        )
    )


def _of_ensemble() -> Space:
    return Space(
        (
            Setting("scale", INSTANCES, (1, 2), 1),
            Setting("scale", DELAY, (0, 500), 0),
            Setting(mlp.NAME, INSTANCES, (1, 2, 3), 1),
            Setting(mlp.NAME, DELAY, (0, 500), 0),
            Setting("softmax", INSTANCES, (1, 2), 1),
        )
    )


def _of_resnet50() -> Space:
    name = resnet50.NAME
    return Space(
        (
            Setting(name, INSTANCES, (1, 2, 3), 1),
            Setting(name, MAX_BATCH, (1, 4, 16), resnet50.MAX_BATCH_SIZE),
            Setting(name, DELAY, (0, 2000), 0),
            Setting(name, _THREADS, (1, 2), 1),
        )
    )


SPACES = {
    "mlp": _of_perceptron,
    "python": _of_perceptron,
    "ensemble": _of_ensemble,
    "resnet50": _of_resnet50,
}
# Seconds of a window, unless the command line says otherwise: an image takes 50 ms.
SECONDS = {"resnet50": 1.5}
# Maximum of requests in flight: more images would wait for seconds.
MAX_IN_FLIGHT = {"resnet50": 16}
