"""The models of a simulated mesh, and what they respond to the request of a number."""

from __future__ import annotations

from dataclasses import dataclass

from nereid.core.methods import CONTROLS_KEY, CRASH_REPORTS_KEY, WITHDRAWALS_KEY
from nereid.pb import kserve_pb2

_CONFIG = """
backend: "python"
input { name: "I" data_type: TYPE_UINT64 dims: 1 }
output { name: "O" data_type: TYPE_UINT64 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""
_BATCHING = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500 }"
_ONCE = 'parameters { key: "at_most_once" value { string_value: "true" } }'


@dataclass(frozen=True)
class SimulatedModel:
    """keys: the metadata of its instances' streams. decoupled: a request has up to 3 responses."""

    name: str
    text: str
    keys: tuple[str, ...]
    decoupled: bool = False
    once: bool = False

    @property
    def reports_crashes(self) -> bool:
        return CRASH_REPORTS_KEY in self.keys

    def values(self, number: int) -> list[int]:
        """The responses to the request of this number."""
        count = number % 4 if self.decoupled else 1
        return [
            (number * 2654435761 + place * 97 + len(self.name)) % 2**64 for place in range(count)
        ]

    def request_head(self) -> bytes:
        head = kserve_pb2.ModelInferRequest(model_name=self.name)
        head.inputs.add(name="I", datatype="UINT64", shape=[1, 1])
        return head.SerializeToString()

    def response_head(self) -> bytes:
        head = kserve_pb2.ModelInferResponse(model_name=self.name, model_version="1")
        head.outputs.add(name="O", datatype="UINT64", shape=[1, 1])
        return head.SerializeToString()


MODELS = (
    SimulatedModel("batched", _CONFIG + _BATCHING, (WITHDRAWALS_KEY,)),
    SimulatedModel(
        "decoupled",
        _CONFIG + "max_batch_size: 4 model_transaction_policy { decoupled: true }",
        (CONTROLS_KEY, CRASH_REPORTS_KEY),
        decoupled=True,
    ),
    SimulatedModel(
        "once",
        _CONFIG + "max_batch_size: 4 dynamic_batching { }" + _ONCE,
        (CRASH_REPORTS_KEY,),
        once=True,
    ),
)
