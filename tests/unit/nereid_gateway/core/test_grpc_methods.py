"""The table of gRPC methods, held against the API's description."""

from __future__ import annotations

from nereid.pb import kserve_pb2
from nereid_gateway.core.grpc_methods import INFERENCE_SERVICE, METHODS, METHODS_BY_PATH

SERVICE = kserve_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def test_every_method_of_the_service_is_one_row() -> None:
    assert len(METHODS_BY_PATH) == len(METHODS)
    names = [method.name for method in METHODS if method.service == INFERENCE_SERVICE]
    assert sorted(names) == sorted(SERVICE.methods_by_name)


def test_a_request_has_the_field_that_names_its_model() -> None:
    for method in METHODS:
        if method.model_field:
            fields = SERVICE.methods_by_name[method.name].input_type.fields_by_name
            assert method.model_field in fields


def test_a_call_has_one_place_to_wait() -> None:
    assert not any(method.at_once and method.is_probe for method in METHODS)
