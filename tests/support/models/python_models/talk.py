"""Does what COMMAND says, and tells in REPLY what came of it."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


def reply(text, **more):
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("REPLY", np.array([text], np.object_))], **more
    )


class TritonPythonModel:
    """The model."""

    def initialize(self, args):
        self.kept = []
        self.held = []
        self.seen = "nothing"

    def execute(self, requests):
        commands = [pb_utils.get_input_tensor_by_name(each, "COMMAND") for each in requests]
        words = [command.as_numpy().ravel()[0].decode().split(" ", 1) for command in commands]
        if words[0][0] in ("return", "raise"):
            return getattr(self, "do_" + words[0][0])(requests[0], *words[0][1:])
        return [
            getattr(self, "do_" + word[0])(request, *word[1:])
            for request, word in zip(requests, words, strict=True)
        ]

    def finalize(self):
        print("talk is finalized", flush=True)

    def do_echo(self, _request, text):
        return reply(text)

    def do_pid(self, _request):
        return reply(str(os.getpid()))

    def do_about(self, request):
        about = {
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "outputs": sorted(request.requested_output_names()),
            "cancelled": request.is_cancelled(),
            "trace": request.trace().get_context(),
        }
        return reply(json.dumps(about))

    def do_raise(self, _request, text):
        raise ValueError(text)

    def do_error(self, _request, words):
        code, text = words.split(" ", 1)
        error = pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
        return pb_utils.InferenceResponse(error=error)

    def do_hold(self, request, text=""):
        """Answer when somebody else says "release", or never."""
        self.held.append((request.get_response_sender(), text))

    def do_withdrawn(self, _request):
        """Return whether nobody waits any more for what is held."""
        return reply(str(all(sender.is_cancelled() for sender, _ in self.held)))

    def do_release(self, _request):
        held, self.held = self.held, []
        for sender, text in held:
            sender.send(reply(text), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return reply(str(len(held)))

    def do_meanwhile(self, request, words):
        """Have a thread answer what is held, or forget it; and then as do_meet."""
        what, place = words.split(" ", 1)
        if what == "release":
            threading.Thread(target=self.do_release, args=(request,)).start()
        else:
            self.held.clear()
        return self.do_meet(request, place)

    def do_toss(self, request, text):
        """Answer by a thread, whenever that gets round to it."""
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        send = request.get_response_sender().send
        threading.Thread(target=send, args=(reply(text), final)).start()

    def do_lose(self, request):
        """Leave the one who could answer to the collector."""
        ring = [request.get_response_sender()]
        ring.append(ring)

    def do_large(self, _request, size):
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("BLOB", np.arange(int(size), dtype=np.uint8))]
        )

    def do_die(self, _request, how):
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), getattr(signal, how))
        return reply("alive")

    def do_babble(self, _request, text):
        """Write to every socket that there is."""
        for path in Path("/proc/self/fd").iterdir():
            try:
                if str(path.readlink()).startswith("socket:"):
                    os.write(int(path.name), text.encode())
            except OSError:
                continue
        return reply("said")

    def do_meet(self, _request, place):
        """Tell that this process has begun, and wait until somebody says that it is enough."""
        Path(place, f"{os.getpid()}.begun").touch()
        while not Path(place, "enough").exists():
            time.sleep(0.01)
        return reply(str(os.getpid()))

    def do_hang(self, _request):
        threading.Event().wait()

    def do_watch(self, request, path):
        """Wait until nobody waits for the response; path: what tells that it has begun."""
        self.seen = "nobody went"
        Path(path).touch()
        for _ in range(3000):
            if request.is_cancelled():
                self.seen = "somebody went"
                break
            time.sleep(0.01)
        return reply("at last")

    def do_watched(self, _request):
        return reply(self.seen)

    def do_keep(self, request):
        """Hold an input beyond its request."""
        self.kept.append(pb_utils.get_input_tensor_by_name(request, "BLOB").as_numpy())
        return reply(str(len(self.kept)))

    def do_kept(self, _request):
        return reply(json.dumps([[len(each.ravel()), int(each.sum())] for each in self.kept]))
