"""The models of a simulated mesh: those of the campaign (tests/torment/contract.py), as their
instances are simulated.

A request has three numbers (INT64): the value that its model computes with, the number of the
request, and how many responses are wanted. A response has two: the model's function of the value,
and the version of its file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError
from nereid.core.methods import CONTROLS_KEY, CRASH_REPORTS_KEY, WITHDRAWALS_KEY
from nereid.core.wire.codecs import read_parameters, write_error
from nereid.core.wire.messages import error_status_of
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.sequence_states import SequenceStates, has_flag, state_specs
from tests.torment import contract

if TYPE_CHECKING:
    from nereid.backends import InstanceSpec
    from nereid_executor.batch.sequence_states import StateSpec

_CONFIG = """
backend: "python"
input { name: "I" data_type: TYPE_INT64 dims: 3 }
output { name: "O" data_type: TYPE_INT64 dims: 2 }
instance_group { count: 1 kind: KIND_CPU }
"""
_BATCHING = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500 }"
_ONCE = 'parameters { key: "at_most_once" value { string_value: "true" } }'
_REQUEST: Final = struct.Struct("<qqq")
_VALUE: Final = struct.Struct("<q")
_RESPONSE: Final = struct.Struct("<qq")


@dataclass(frozen=True)
class SimulatedModel:
    """keys: the metadata of its instances' streams. decoupled: a request says how many responses it
    has. weight: how often it is asked.
    """

    name: str
    text: str
    keys: tuple[str, ...] = ()
    decoupled: bool = False
    weight: int = 1
    has_states: bool = False
    # Clients ask only its ensemble.
    is_step: bool = False

    @property
    def serves_itself(self) -> bool:
        """Whether its worker serves the stream, and reports what it ran once that has ended."""
        return self.reports_crashes and not self.decoupled

    @property
    def contract(self) -> contract.Model:
        return contract.MODELS.get(self.name) or contract.Model(self.name)

    @property
    def once(self) -> bool:
        return self.contract.at_most_once

    @property
    def is_cached(self) -> bool:
        return "response_cache" in self.text

    @property
    def reports_crashes(self) -> bool:
        return CRASH_REPORTS_KEY in self.keys

    def responses(self, payload: bytes, version: int) -> list[bytes]:
        """The payloads of the responses to the request with this one."""
        value, _, count = _REQUEST.unpack(payload)
        if self.name == "judge":
            return [_VALUE.pack(value)]
        if self.name == "negated":
            return [_RESPONSE.pack(-contract.linear(value, version), version)]
        result = self.contract.function(value, version)
        return [_RESPONSE.pack(result + place, version) for place in range(count)]

    def make_states(self, spec: InstanceSpec) -> SequenceStates[int]:
        """Of an instance: each sequence's sum."""
        specs = state_specs(spec.config, spec.version_path.parent)
        return SequenceStates(spec.config.name, specs, [0], _read_sum, _write_sum)

    def execute_sequences(
        self, batch: pb.Batch, reply: pb.Executed, states: SequenceStates[int], version: int
    ) -> None:
        """Execute a batch's requests, whose values are added to their sequences' sums."""
        for requests in states.replays(batch.members):
            for request in requests:
                _add(states.begin(request), request)
        wanted: list[tuple[int, list[int]]] = []
        for member in batch.members:
            response = reply.responses.add()
            try:
                state = states.begin(member)
            except NereidError as error:
                write_error(error_status_of(error), response.error)
                continue
            result = _add(state, member)
            if has_flag(member, "sequence_end"):
                states.end(member.sequence_slot, state)
                if self.contract.adds_id:
                    result += int(read_parameters(member.parameters)["sequence_id"])
            if member.returns_state:
                wanted.append((member.sequence_slot, state))
            response.head = self.response_head()
            response.payloads.add(inline=_RESPONSE.pack(result, version))
        states.export_states(batch.exported_slots, reply)
        states.return_states(wanted, reply)

    def request_head(self) -> bytes:
        head = kserve_pb2.ModelInferRequest(model_name=self.name)
        head.inputs.add(name="I", datatype="INT64", shape=[1, 3])
        return head.SerializeToString()

    def response_head(self) -> bytes:
        head = kserve_pb2.ModelInferResponse(model_name=self.name, model_version="1")
        size = 1 if self.name == "judge" else 2
        head.outputs.add(name="O", datatype="INT64", shape=[1, size])
        return head.SerializeToString()


def _add(state: list[int], member: pb.BatchMember) -> int:
    """Add a request's value to its sequence's sum."""
    state[0] += _REQUEST.unpack(member.payloads[0].inline)[0]
    return state[0]


def _read_sum(_: StateSpec, tensor: pb.StateTensor) -> int:
    return int.from_bytes(tensor.data, "little", signed=True)


def _write_sum(value: int) -> pb.StateTensor:
    return pb.StateTensor(shape=(1,), data=value.to_bytes(8, "little", signed=True))


def request_payload(value: int, number: int, count: int) -> bytes:
    """number: of the request; 0 where requests of one value are to be the same."""
    return _REQUEST.pack(value, number, count)


def number_of(payload: bytes) -> int:
    """Of the request with this payload."""
    return int.from_bytes(payload[8:16], "little", signed=True)


def result_of(payload: bytes) -> tuple[int, int]:
    """Value and version in a response's payload."""
    value, version = _RESPONSE.unpack(payload)
    return value, version


_SEQUENCES = """
max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 10000000
  %s
  state { input_name: "S" output_name: "T" data_type: TYPE_INT64 dims: 1 }
}
"""
_SNAPSHOTS = 'parameters { key: "sequence_snapshot_interval" value { string_value: "1" } }'
_PYTHON = (CRASH_REPORTS_KEY,)
_STEP = """step { model_name: "%s" model_version: -1
    input_map { key: "I" value: "I" } output_map { key: "O" value: "%s" } }
"""
_CONDITION = 'parameters { key: "condition.%s" value { string_value: "C %s %d" } }\n'
_BRANCHES = (
    'platform: "ensemble" max_batch_size: 8\n'
    + "".join(line for line in _CONFIG.splitlines(keepends=True) if "put {" in line)
    + f"ensemble_scheduling {{ {_STEP % ('judge', 'C')} {_STEP % ('steady', 'O')}"
    + f" {_STEP % ('negated', 'O')} }}\n"
    + _CONDITION % ("steady", "<", contract.HALF)
    + _CONDITION % ("negated", ">=", contract.HALF)
)
MODELS = (
    SimulatedModel("steady", _CONFIG + _BATCHING, (WITHDRAWALS_KEY,), weight=5),
    SimulatedModel("onnx", _CONFIG + _BATCHING, (WITHDRAWALS_KEY,), weight=3),
    SimulatedModel(
        "cached",
        _CONFIG + _BATCHING + "response_cache { enable: true }",
        (WITHDRAWALS_KEY,),
        weight=3,
    ),
    SimulatedModel("branches", _BRANCHES, weight=3),
    SimulatedModel(
        "judge",
        _CONFIG.replace("dims: 2", "dims: 1") + _BATCHING,
        (WITHDRAWALS_KEY,),
        is_step=True,
    ),
    SimulatedModel("negated", _CONFIG + _BATCHING, (WITHDRAWALS_KEY,), is_step=True),
    SimulatedModel("large", _CONFIG + _BATCHING, (WITHDRAWALS_KEY,)),
    SimulatedModel("python", _CONFIG + "max_batch_size: 4 dynamic_batching { }", _PYTHON),
    SimulatedModel(
        "decoupled",
        _CONFIG + "max_batch_size: 4 model_transaction_policy { decoupled: true }",
        (CONTROLS_KEY, *_PYTHON),
        decoupled=True,
        weight=2,
    ),
    SimulatedModel(
        "once", _CONFIG + "max_batch_size: 4 dynamic_batching { }" + _ONCE, _PYTHON, weight=2
    ),
    SimulatedModel(
        "direct",
        _CONFIG + _SEQUENCES % "direct { }",
        (WITHDRAWALS_KEY,),
        has_states=True,
    ),
    SimulatedModel(
        "oldest",
        _CONFIG + _SEQUENCES % "oldest { max_candidate_sequences: 4 }" + _SNAPSHOTS,
        (WITHDRAWALS_KEY,),
        has_states=True,
    ),
)
