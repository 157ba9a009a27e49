"""The conditional ensemble of benchmarks.conditions, as a Python model that calls the models."""

import asyncio
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model, under the name by which backends load it."""

    async def execute(self, requests: list[Any]) -> list[Any]:
        """Return each request's response; the requests' calls run at the same time."""
        return list(await asyncio.gather(*map(self._respond, requests)))

    async def _respond(self, request: Any) -> Any:
        x = pb_utils.get_input_tensor_by_name(request, "X")
        positive = await self._call("sign", "POSITIVE", x)
        y = await self._call("double" if positive.as_numpy().item() else "triple", "Y", x)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y.as_numpy())])

    async def _call(self, model: str, output: str, x: Any) -> Any:
        call = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=[output], inputs=[x]
        )
        response = await call.async_exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, output)
