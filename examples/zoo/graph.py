"""An ONNX graph in the making: nodes, and weights by their names. Knows no architecture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, checker, helper, numpy_helper

# Opset 17 brought LayerNormalization; an IR this old is read by every ONNX Runtime since 1.12.
OPSET = 17
IR_VERSION = 8


class Graph:
    """Collects nodes and initializers; every method returns the name of the tensor it made."""

    def __init__(self, name: str, weights: Mapping[str, NDArray[Any]]) -> None:
        self._name = name
        self._weights = weights
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}

    def add_node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{op}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def number(self, value: float) -> str:
        return self.constant(f"number_{value}", np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(f"integers_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def weight(self, name: str) -> str:
        return self.constant(name, self._weights[name])

    def linear(self, name: str, values: str) -> str:
        transposed = self.constant(f"{name}.weight.T", self._weights[f"{name}.weight"].T)
        return self.add_node(
            "Add", self.add_node("MatMul", values, transposed), self.weight(f"{name}.bias")
        )

    def layer_norm(self, name: str, values: str, epsilon: float) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add_node("LayerNormalization", values, scale, bias, axis=-1, epsilon=epsilon)

    def model(self, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> ModelProto:
        graph = helper.make_graph(
            self._nodes, self._name, inputs, outputs, list(self._initializers.values())
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
        checker.check_model(model, full_check=True)
        return model


def value(name: str, element: int, dims: Sequence[str | int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element, dims)
