"""OUT = IN + 1 by a coroutine, which waits for as many milliseconds as the input says."""

import asyncio
import threading

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model."""

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_max_batch_size(16)
        config.set_dynamic_batching()
        return config

    async def execute(self, requests):
        return await asyncio.gather(*map(self.respond, requests))

    async def respond(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        await asyncio.sleep(int(given.max()) / 1000)
        assert threading.current_thread() is not threading.main_thread()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given + 1)])
