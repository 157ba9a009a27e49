"""Asks other models, as COMMAND says, and tells in REPLY what came of it."""

import asyncio
import json
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

MADE = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.word = json.loads(args["model_config"])["parameters"]["word"]["string_value"]
    def execute(self, requests):
        tensor = pb_utils.Tensor("REPLY", np.array([self.word], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


def request_to(model, command, **more):
    tensor = pb_utils.Tensor("COMMAND", np.array([command], np.object_))
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["REPLY"], inputs=[tensor], **more
    )


def text_of(response):
    if not response.output_tensors() and not response.has_error():
        return "end"
    if response.has_error():
        return f"{response.error().code().name}: {response.error().message()}"
    tensor = pb_utils.get_output_tensor_by_name(response, "REPLY")
    return tensor.as_numpy().ravel()[0].decode()


def through_identity(array, model="identity"):
    return pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=["OUT_FP32"],
        inputs=[pb_utils.Tensor("IN_FP32", array)],
    )


def mappings():
    return Path("/proc/self/maps").read_text().count("memfd:nereid-segment")


class TritonPythonModel:
    """The model."""

    def initialize(self, _args):
        self.heard = "nothing"
        self.kept = []

    async def execute(self, requests):
        return [await self.respond(request) for request in requests]

    async def respond(self, request):
        command = pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy().ravel()[0]
        what, *rest = command.decode().split(" ", 2)
        try:
            reply = await getattr(self, what)(request, *rest)
        except pb_utils.TritonModelException as error:
            reply = f"exception: {error}"
        tensor = pb_utils.Tensor("REPLY", np.array([reply], np.object_))
        return pb_utils.InferenceResponse([tensor])

    async def exec(self, request, model, command):
        """Blocks the loop, as models do that know no better."""
        self.heard = text_of(request_to(model, command, trace=request.trace()).exec())
        return self.heard

    async def last(self, _request):
        """Return the last reply, also where nobody waited for it any more."""
        return self.heard

    async def large(self, _request, size, model="identity"):
        """There and back through the identity model."""
        array = np.arange(int(size), dtype=np.float32).reshape(1, -1)
        response = through_identity(array, model).exec()
        if response.has_error():
            return text_of(response)
        (tensor,) = response.output_tensors()
        return str(bool(np.array_equal(tensor.as_numpy(), array)))

    async def mapped(self, _request, size):
        """Return how much of others' memory it holds with a response, and without."""
        response = through_identity(np.zeros((1, int(size)), np.float32)).exec()
        held = mappings()
        # Its own from then on, and nobody sees it.
        response.output_tensors()[0].as_numpy()[:] = 7
        del response
        return f"{held} {mappings()}"

    async def keep(self, _request, size, numbers):
        """Hold responses, asked for all at once, beyond the request."""
        arrays = [np.full((1, int(size)), int(each), np.float32) for each in numbers.split(",")]
        asked = [through_identity(array).async_exec() for array in arrays]
        self.kept += await asyncio.gather(*asked)
        return str(len(self.kept))

    async def let_go(self, _request):
        """Return the present contents of the responses that it held."""
        kept, self.kept = self.kept, []
        values = [np.unique(each.output_tensors()[0].as_numpy()).tolist() for each in kept]
        return json.dumps(values)

    async def pid(self, _request):
        return str(os.getpid())

    async def linked(self, _request):
        """Return whether this process has a link of its own to the scheduler."""
        return str(any(each.name == "nereid-link" for each in threading.enumerate()))

    async def storm(self, _request, model, count):
        """Calls by threads, by coroutines and by a blocked loop at once, and what came of each."""

        def check(number, response):
            text = text_of(response)
            return "right" if text == str(number) else text

        def by_thread(number):
            return check(number, request_to(model, f"echo {number}").exec())

        async def by_loop(number):
            return check(number, await request_to(model, f"echo {number}").async_exec())

        numbers = range(int(count))
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(by_thread, number) for number in numbers[::3]]
            asked = asyncio.gather(*map(by_loop, numbers[1::3]))
            outcomes = Counter()
            for number in numbers[2::3]:
                outcomes[by_thread(number)] += 1
                await asyncio.sleep(0)
            outcomes.update(await asked)
            outcomes.update([each.result() for each in waiting])
        return json.dumps(outcomes)

    async def add(self, _request, model, numbers):
        """Sums of a sequence of calls, none of which waits for the one before."""
        values = [int(each) for each in numbers.split(",")]
        asked = []
        for place, value in enumerate(values):
            flags = (place == 0) + 2 * (place == len(values) - 1)
            tensor = pb_utils.Tensor("INPUT", np.array([[value]], np.int32))
            made = pb_utils.InferenceRequest(
                model_name=model,
                requested_output_names=["OUTPUT"],
                inputs=[tensor],
                correlation_id=1 + len(self.kept),
                flags=flags,
            )
            asked.append(made.async_exec())
        sums = []
        for response in await asyncio.gather(*asked):
            if response.has_error():
                return text_of(response)
            sums.append(int(response.output_tensors()[0].as_numpy()[0, 0]))
        return json.dumps(sums)

    async def iterate(self, _request, model, command):
        return ",".join(map(text_of, request_to(model, command).exec(decoupled=True)))

    async def iterate_again(self, _request, model, command):
        """The rest after the first, and then all of them."""
        responses = request_to(model, command).exec(decoupled=True)
        first = text_of(next(responses))
        return " ".join([first, *(",".join(map(text_of, responses)) for _ in range(2))])

    async def drop(self, _request, model, command):
        """One of many, and nothing said of the others."""
        return text_of(next(request_to(model, command).exec(decoupled=True)))

    async def forked(self, _request, model, command):
        """A process that was forked cannot ask, and does no harm."""
        reader, writer = os.pipe()
        if not os.fork():
            try:
                pb_utils.Logger.log_info("nobody hears this")
                text = text_of(request_to(model, command).exec())
            except pb_utils.TritonModelException as error:
                text = str(error)
            os.write(writer, text.encode())
            os._exit(0)
        os.wait()
        return os.read(reader, 1000).decode()

    async def first(self, _request, model, command):
        """One of many, and no more."""
        responses = request_to(model, command).exec(decoupled=True)
        reply = text_of(next(responses))
        responses.cancel()
        return reply

    async def ready(self, _request, model):
        return json.dumps(pb_utils.is_model_ready(model))

    async def die_asking(self, _request, model, place):
        """Once the other one has begun, which tells it in a folder."""
        asked = request_to(model, f"meet {place}").async_exec()
        while not [*Path(place).glob("*.begun")]:
            await asyncio.sleep(0.01)
        os._exit(1)
        await asked

    async def load_made(self, _request, model):
        """A model of another configuration and another file than its directory has."""
        tensor = {"data_type": "TYPE_STRING", "dims": [1]}
        config = {
            "backend": "python",
            "input": [{"name": "COMMAND", **tensor}],
            "output": [{"name": "REPLY", **tensor}],
            "parameters": {"word": {"string_value": "made"}},
        }
        files = {"file:1/model.py": MADE.encode()}
        pb_utils.load_model(model_name=model, config=json.dumps(config), files=files)
        return "loaded"

    async def load(self, _request, model):
        pb_utils.load_model(model)
        return "loaded"

    async def unload(self, _request, model):
        pb_utils.unload_model(model)
        return "unloaded"
