"""What code of a model can do to its host and its neighbours, with --sandbox-models and without."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_executor.backends.python.sandbox.given_connections import (
    can_refuse_connections,
    refuse_connections,
)
from nereid_executor.backends.python.sandbox.policy import (
    Confinement,
    launcher_command,
    missing_protection,
    policy_descriptor,
    provided_protection,
)
from tests.support.mesh.mesh import Mesh, has_ended, running, until
from tests.support.models import python_models

pytestmark = pytest.mark.slow

NUMBERS = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "mount": 165, "unshare": 272, "setns": 308,
        "keyctl": 250, "add_key": 248, "userfaultfd": 323, "bpf": 321, "perf_event_open": 298,
        "pidfd_getfd": 438, "name_to_handle_at": 303, "io_uring_setup": 425, "shmget": 29,
        "kexec_load": 246, "inotify_init1": 294, "clone": 56, "mq_open": 240, "fsopen": 430,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "mount": 40, "unshare": 97, "setns": 268,
        "keyctl": 219, "add_key": 217, "userfaultfd": 282, "bpf": 280, "perf_event_open": 241,
        "pidfd_getfd": 438, "name_to_handle_at": 264, "io_uring_setup": 425, "shmget": 194,
        "kexec_load": 104, "inotify_init1": 26, "clone": 220, "mq_open": 180, "fsopen": 430,
    },
}[platform.machine()]  # fmt: skip
MOVE_PAGES = {"x86_64": 279, "aarch64": 239}[platform.machine()]
CALLS = {
    "ptrace": "16, os.getppid(), 0, 0",
    "process_vm_readv": "os.getppid(), None, 0, None, 0, 0",
    "mount": "b'none', b'/mnt', b'tmpfs', 0, 0",
    "unshare": "0x10000000",
    "setns": "0, 0",
    "keyctl": "0, -3, 1",
    "add_key": "b'user', b'nereid', b'x', 1, -3",
    "userfaultfd": "1",
    "bpf": "0, 0, 0",
    "perf_event_open": "0, 0, -1, -1, 0",
    "pidfd_getfd": "os.pidfd_open(os.getppid()), 1, 0",
    "name_to_handle_at": "-100, b'/etc/passwd', None, None, 0",
    "io_uring_setup": "1, 0",
    "shmget": "0, 4096, 0o1600",
    "kexec_load": "0, 0, 0, 0",
    "inotify_init1": "0",
    # A child of the executor, which would stay a zombie.
    "clone": "0x8011, 0, 0, 0, 0",
    "mq_open": "b'nereid', 0o102, 0o600, None",
    "fsopen": "b'tmpfs', 0",
}
# The last one: no such socket in the model's own network.
DENIED = (
    "PermissionError", "EPERM", "Read-only file system", "FileNotFoundError",
    "ConnectionRefusedError",
)  # fmt: skip
# Code with {neighbour}, the folder of another model, {state}, {port}, the gateway's, and
# {listener}, a socket and the name of an abstract one, and {datagrams}, another.
PROBES = {
    "weights of another model": "open('{neighbour}/1/weights.bin').read()",
    "size of another model's weights": "os.stat('{neighbour}/1/weights.bin')",
    "code of another model": "open('{neighbour}/1/model.py', 'a')",
    "modes of another model's files": "os.chmod('{neighbour}/1/weights.bin', 0)",
    "names of models": "os.listdir('{neighbour}/..')",
    "state": "open('{state}/secret').read()",
    "own code": "open(pb_utils.get_model_dir() + '/model.py', 'a')",
    # Others who open the file would wait 45 s.
    "lease of a file":
        "import fcntl; file = open(pb_utils.get_model_dir() + '/weights.bin');"
        " fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK);"
        " fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)",
    "notifications of a directory":
        "import fcntl; fcntl.fcntl(os.open('{neighbour}/..', 0), fcntl.F_NOTIFY, 32)",
    "files of the system": "open('/etc/shadow').read()",
    "home": "os.listdir('/root')",
    "environment of the executor": "open(f'/proc/{{os.getppid()}}/environ').read()",
    "command line of the executor": "open(f'/proc/{{os.getppid()}}/cmdline').read()",
    "memory of the executor": "open(f'/proc/{{os.getppid()}}/mem', 'rb')",
    "descriptors of the executor": "os.listdir(f'/proc/{{os.getppid()}}/fd')",
    "gateway": "import socket; socket.create_connection(('127.0.0.1', {port}), 5)",
    "metadata address": "import socket; socket.create_connection(('169.254.169.254', 80), 0.2)",
    "unix socket by its path":
        "import socket; socket.socket(socket.AF_UNIX).connect('{listener}')",
    "abstract unix socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0{listener}')",
    "datagram to a unix socket":
        "import socket; socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', '{datagrams}')",
    "signals": "os.kill(os.getppid(), 0)",
    "signals by a descriptor":
        "import signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
    "memory policy of the executor":
        "system_call({move_pages}, os.getppid(), 0, None, None, None, 0)",
    "score of its memory": "open('/proc/self/oom_score_adj', 'w').write('0')",
    "settings of the kernel": "open('/proc/sys/vm/swappiness', 'r+')",
    "limits of the executor":
        "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))",
    "affinity of the executor": "os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))",
    "loads and unloads": "pb_utils.unload_model('neighbour')",
}  # fmt: skip
LISTENER, DATAGRAMS = "listener", "datagrams"
FILL_DISK = """
import tempfile
for number in range(100):
    with open(f"{tempfile.gettempdir()}/{number}", "wb") as file:
        file.write(bytes(1 << 20))
"""
EMPTY_FILES = """
import tempfile
directory = tempfile.mkdtemp()
try:
    for number in range(2000):
        open(f"{directory}/{number}", "w").close()
finally:
    import shutil
    shutil.rmtree(directory)
"""
# Cuts off the memory of which the executor reads the number of the last batch, then ends.
CUT = """
for entry in os.listdir("/proc/self/fd"):
    link = f"/proc/self/fd/{entry}"
    if os.path.lexists(link) and "nereid-worker" in os.readlink(link):
        try:
            os.truncate(link, 0)
        except PermissionError:
            reply = "refused"
"""
FILE_SIZE = "os.truncate(os.memfd_create('x'), 1 << 30)"
CPU = 'parameters { key: "sandbox_cpu_seconds" value { string_value: "2" } }'
FILL_MEMORY = "np.ones(1 << 29)"
# A process that leaves the group of the worker, and holds on to its output.
ESCAPE = """
import subprocess
program = "import time; print(1, flush=True); time.sleep(99)"
process = subprocess.Popen(
    ["python3", "-c", program], stdout=-1, start_new_session=True
)
process.stdout.readline()
reply = process.pid
"""
THREADS = """
import threading
end = threading.Event()
reply = 0
try:
    while True:
        threading.Thread(target=end.wait).start()
        reply += 1
except RuntimeError:
    end.set()
"""
POOLS = """
import concurrent.futures, multiprocessing
with concurrent.futures.ProcessPoolExecutor(2) as pool:
    first = list(pool.map(abs, [-1, -2]))
with multiprocessing.get_context("spawn").Pool(1) as pool:
    second = pool.map(abs, [-3])
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=100)
memory.unlink()
reply = first + second
"""
CALL = """
code = pb_utils.Tensor("CODE", np.array([b"reply = 6 * 7"], np.object_))
request = pb_utils.InferenceRequest(
    model_name="neighbour", requested_output_names=["REPLY"], inputs=[code]
)
reply = pb_utils.get_output_tensor_by_name(request.exec(), "REPLY").as_numpy()[0].decode()
"""
# HEADERS of a second call on the connection that serves the instance: an unload.
IMPOSTOR = """
import socket, tempfile
mark = tempfile.gettempdir() + "/sent"
reply = "again"
if not os.path.exists(mark):
    open(mark, "w").close()
    path = b"/inference.GRPCInferenceService/RepositoryModelUnload"
    block = b"\\x83\\x86\\x44" + bytes([len(path)]) + path
    frame = len(block).to_bytes(3, "big") + b"\\x01\\x04" + (3).to_bytes(4, "big") + block
    for entry in os.listdir("/proc/self/fd"):
        try:
            other = socket.socket(fileno=os.dup(int(entry)))
            if "scheduler" in str(other.getpeername()):
                other.sendall(frame)
        except OSError:
            pass
    reply = "only once"
"""

# Raises where the model's own handler does not catch it.
FAILURE = """
made = pb_utils.InferenceResponse
def fail(_):
    pb_utils.InferenceResponse = made
    open("/etc/shadow")
pb_utils.InferenceResponse = fail
"""
# A call of a model that the operator does not allow, in the ordinary way, and for its readiness.
FORBIDDEN_CALLS = """
code = pb_utils.Tensor("CODE", np.array([b"reply = 1"], np.object_))
request = pb_utils.InferenceRequest(
    model_name="prober", requested_output_names=["REPLY"], inputs=[code]
)
reply = request.exec().error().message()
try:
    pb_utils.is_model_ready("prober")
except pb_utils.TritonModelException as error:
    reply += f"; {error}"
"""
UNLOAD = {"what": "unload", "model": "neighbour", "dependents": True}
FORGED_CALL = {
    "what": "infer", "model": "prober", "version": -1, "id": "", "outputs": [], "parameters": {},
    "inputs": [["CODE", "BYTES", [1]]], "correlation_id": 0, "flags": 0, "timeout_us": 0,
    "trace": "", "deadline_ns": 0, "caller_known": False,
}  # fmt: skip
# Frames of the protocol between worker and executor that a worker would never send.
# Announces a line of the log that is larger than any report.
FLOOD = """
import socket, time
for entry in os.listdir("/proc/self/fd"):
    try:
        other = socket.socket(fileno=os.dup(int(entry)))
        if other.family == socket.AF_UNIX and not other.getpeername():
            other.sendall((1 << 30).to_bytes(4, "little") + (25).to_bytes(4, "little"))
    except OSError:
        pass
time.sleep(60)
"""
LIAR = """
import json, socket, sys
wire = next(
    module for name, module in sys.modules.items() if name.endswith("nereid_worker.protocol.wire")
)
def frame(kind, *parts):
    body = b"".join(map(bytes, parts))
    return len(body).to_bytes(4, "little") + kind.to_bytes(4, "little") + body
series = ["new", 9, "nv_inference_request_success", "", 0, {"model": "neighbour"}, []]
frames = [
    frame(wire.LOG, json.dumps([1, "x\\n2026-01-01 INFO neighbour_0: by frame"]).encode()),
    frame(wire.METRIC, json.dumps(series).encode()),
    frame(wire.METRIC, b"[" * 20_000),
    frame(wire.KEPT, *wire.kept_parts([1, 2], b"reply")),
    frame(wire.REQUEST_LINK, b"null"),
]
if CALL:
    call = wire.Call(4242, 0, json.dumps(CALL).encode(), [b"\\x09\\0\\0\\0reply = 1"] * TENSORS)
    frames.append(frame(wire.CALL, *wire.call_parts(call)))
for entry in os.listdir("/proc/self/fd"):
    try:
        other = socket.socket(fileno=os.dup(int(entry)))
        if other.family == socket.AF_UNIX and not other.getpeername():
            other.sendall(b"".join(frames))
    except OSError:
        pass
"""


@pytest.fixture(scope="module", autouse=True)
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    provided = provided_protection(tmp_path_factory.mktemp("probe"))
    if missing := missing_protection(provided):
        pytest.skip("; ".join(missing))


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A directory with the models. /tmp would be hidden from them, whatever else protects it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        root = Path(directory)
        for name, parameter in (("prober", ""), ("neighbour", ""), ("burner", CPU)):
            config = python_models.PROBER + parameter
            model = python_models.save(root / "models", "prober", config, name)
            (model / "1" / "weights.bin").write_text("weights")
        (root / "state").mkdir()
        (root / "state" / "secret").write_text("state")
        path = str(root / LISTENER)
        with contextlib.ExitStack() as stack:
            for address in (path, f"\0{path}"):
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(address)
                listener.listen()
            receiver = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            receiver.bind(str(root / DATAGRAMS))
            yield root


@pytest.fixture(scope="module")
def confined(root: Path) -> Iterator[Mesh]:
    flags = (
        "--sandbox-models", "--sandbox-temporary-bytes=16777216",
        "--sandbox-memory-bytes=2000000000", "--sandbox-processes=200",
        "--sandbox-call=prober:neighbour",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVICE_TOKEN", "hunter2")
        with running(root / "models", root / "confined.log", *flags) as mesh:
            yield mesh


@pytest.fixture(scope="module")
def free(root: Path) -> Iterator[Mesh]:
    with running(root / "models", root / "free.log", "--sandbox-models=false") as mesh:
        yield mesh


def confined_program(
    command: list[str],
    temporary: Path,
    descriptors: tuple[int, ...],
    *read: str,
    has_unix_sockets: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a program as the launcher starts workers."""
    paths = (sys.prefix, sys.base_prefix, *read)
    confinement = Confinement(
        frozenset(), paths, frozenset(), 1 << 40, 1 << 20, 64, has_unix_sockets=has_unix_sockets
    )
    policy = policy_descriptor(confinement.policy(command, temporary / "own"))
    try:
        return subprocess.run(
            launcher_command(policy),
            pass_fds=(policy, *descriptors),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(policy)


def run(mesh: Mesh, code: str, model: str = "prober") -> str:
    """Return what the model's code replies."""
    tensor = {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}
    body = json.dumps({"inputs": [tensor]}).encode()
    _, response = mesh.get(f"/v2/models/{model}/infer", "POST", body)
    return str(json.loads(response)["outputs"][0]["data"][0])


def probe(mesh: Mesh, name: str) -> str:
    """Return the reply to a probe."""
    root = mesh.log.parent
    return run(
        mesh,
        PROBES[name].format(
            neighbour=root / "models" / "neighbour",
            state=root / "state",
            port=mesh.http_port,
            listener=root / LISTENER,
            datagrams=root / DATAGRAMS,
            move_pages=MOVE_PAGES,
        ),
    )


def is_denied(reply: str) -> bool:
    return any(text in reply for text in (*DENIED, "confined model may"))


@pytest.mark.parametrize("name", PROBES)
def test_probes_fail(confined: Mesh, name: str) -> None:
    assert is_denied(probe(confined, name))


@pytest.mark.parametrize("name", CALLS)
def test_system_calls_are_refused(confined: Mesh, name: str) -> None:
    reply = run(confined, f"system_call({NUMBERS[name]}, {CALLS[name]})")
    assert reply == "PermissionError: [Errno 1] Operation not permitted"


@pytest.mark.parametrize(
    "name",
    [
        "weights of another model", "names of models", "state",
        "command line of the executor", "gateway", "datagram to a unix socket", "signals",
        "unix socket by its path", "abstract unix socket",
        "affinity of the executor", "size of another model's weights", "lease of a file",
        "notifications of a directory", "signals by a descriptor", "memory policy of the executor",
    ],
)  # fmt: skip
def test_the_same_probes_succeed_without_the_sandbox(free: Mesh, name: str) -> None:
    assert probe(free, name) == "done"


def test_processes_of_a_model_cannot_read_proc_self(confined: Mesh, free: Mesh) -> None:
    code = (
        "import subprocess;"
        " reply = subprocess.run(['cat', '/proc/self/stat'], capture_output=True).stderr.decode()"
    )
    assert "/proc/self/stat: Permission denied" in run(confined, code)
    assert not run(free, code)


def test_temporary_files_are_its_own(confined: Mesh, free: Mesh, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    code = f"open('{tmp_path / 'secret'}')"
    assert "No such file" in run(confined, code)
    assert run(free, code) == "done"
    own = "/tmp/of-a-confined-model"
    assert run(confined, f"open('{own}', 'w').write('x'); reply = open('{own}').read()") == "x"
    assert not Path(own).exists()


def test_its_network_is_its_own(confined: Mesh, free: Mesh) -> None:
    code = "reply = open('/proc/self/net/unix').read()"
    assert "scheduler.sock" not in run(confined, code)
    assert "scheduler.sock" in run(free, code)


def test_the_executor_does_not_read_memory_that_a_model_cuts_off(
    confined: Mesh, free: Mesh
) -> None:
    """A page that is not there would kill it, with the workers of all models (SIGBUS)."""
    for mesh in (confined, free):
        executors = mesh.children("nereid_executor")
        assert run(mesh, CUT, "neighbour") == "refused"
        with contextlib.suppress(KeyError):
            run(mesh, "os._exit(0)", "neighbour")
        assert run(mesh, "reply = 1", "neighbour") == "1"
        assert mesh.children("nereid_executor") == executors


def test_without_memory_the_kernel_ends_workers_first(confined: Mesh, free: Mesh) -> None:
    code = "reply = open('/proc/self/oom_score_adj').read()"
    assert int(run(confined, code)) == min(1000, int(run(free, code)) + 500)


def test_an_error_says_what_to_do(confined: Mesh) -> None:
    tensor = {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [FAILURE]}
    body = json.dumps({"inputs": [tensor]}).encode()
    _, response = confined.get("/v2/models/prober/infer", "POST", body)
    assert "/etc/shadow' (the model is confined" in response.decode()


def test_limits(confined: Mesh) -> None:
    assert "No space left" in run(confined, FILL_DISK)
    assert "No space left" in run(confined, EMPTY_FILES, "burner")
    assert "File too large" in run(confined, FILE_SIZE)
    assert "MemoryError" in run(confined, FILL_MEMORY)


def test_processes_are_limited(confined: Mesh) -> None:
    reply = run(confined, THREADS)
    assert int(reply) < 200
    assert run(confined, "os.setreuid(0, 0)").startswith("PermissionError")


@pytest.mark.skipif(
    not can_refuse_connections(["127.0.0.1:1"]), reason="this kernel needs CAP_NET_ADMIN for it"
)
def test_a_given_connection_leads_nowhere_else(tmp_path: Path) -> None:
    """A worker has a TCP connection to a scheduler on another host."""
    code = """
import ctypes, socket, sys
given = socket.socket(fileno=int(sys.argv[1]))
# AF_UNSPEC ends the connection.
assert not ctypes.CDLL(None).connect(given.fileno(), bytes(16), 16)
try:
    given.connect(("127.0.0.1", int(sys.argv[2])))
except PermissionError:
    print("refused")
try:
    # SO_DETACH_FILTER
    given.setsockopt(socket.SOL_SOCKET, 27, 0)
except PermissionError:
    print("locked")
"""
    with contextlib.ExitStack() as stack:
        scheduler, other = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)
        )
        given = stack.enter_context(socket.create_connection(scheduler.getsockname()))
        refuse_connections(given)
        arguments = [str(given.fileno()), str(other.getsockname()[1])]
        command = [sys.executable, "-c", code, *arguments]
        ended = confined_program(command, tmp_path, (given.fileno(),))
    assert ended.stdout == "refused\nlocked\n", ended


def test_a_given_connection_that_could_listen_is_not_ended(tmp_path: Path) -> None:
    """Without Unix sockets, a worker needs no call by which a connection ends."""
    code = """
import ctypes, socket, sys
given = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
# AF_UNSPEC.
print(libc.connect(given, bytes(16), 16), ctypes.get_errno())
print(socket.socket(fileno=given).getpeername()[1])
try:
    socket.socket(socket.AF_UNIX)
except PermissionError:
    print("refused")
"""
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = scheduler.getsockname()[1]
        given = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        command = [sys.executable, "-c", code, str(given.fileno())]
        ended = confined_program(command, tmp_path, (given.fileno(),), has_unix_sockets=False)
    assert ended.stdout == f"-1 {errno.EPERM}\n{port}\nrefused\n", ended


def test_links_lead_to_what_a_model_may_read(tmp_path: Path) -> None:
    """Interpreters and repositories often have several, one after another."""
    (tmp_path / "3.11.7" / "bin").mkdir(parents=True)
    (tmp_path / "3.11.7" / "bin" / "file").write_text("x")
    (tmp_path / "3.11").symlink_to("3.11.7")
    (tmp_path / "current").symlink_to(tmp_path / "3.11")
    (tmp_path / "3.11.7" / "other").symlink_to("../current/bin")
    (tmp_path / "passed").mkdir()
    named = tmp_path / "passed" / ".." / "current" / "other" / ".." / "bin" / "file"
    (tmp_path / "circle").symlink_to("circle")
    code = f"print(open({str(named)!r}).read()); print(sorted(os.listdir('/tmp')))"
    command = [sys.executable, "-c", f"import os; {code}"]
    ended = confined_program(command, tmp_path, (), str(named), str(tmp_path / "circle"))
    assert ended.stdout.splitlines()[:1] == ["x"], ended


@pytest.mark.parametrize("read", ["/", "/tmp", "/dev", "parent"])
def test_temporary_files_are_its_own_also_in_directories_that_it_may_read(
    tmp_path: Path, read: str
) -> None:
    """Operators may name a directory that TMPDIR lies in, or all."""
    own = tmp_path / "own"
    own.mkdir()
    code = (
        "import os; open('x', 'w'); open('/tmp/of-a-confined-model', 'w');"
        " open('/dev/shm/of-a-confined-model', 'w'); print(os.path.exists('x'))"
    )
    path = str(tmp_path) if read == "parent" else read
    ended = confined_program([sys.executable, "-c", code], tmp_path, (), path)
    assert ended.stdout == "True\n", ended
    assert not [*own.iterdir()]
    assert not Path("/tmp/of-a-confined-model").exists()
    assert not Path("/dev/shm/of-a-confined-model").exists()


def test_what_a_model_starts_ends_with_it(confined: Mesh) -> None:
    pid = int(run(confined, ESCAPE, "neighbour"))
    assert not has_ended(pid)
    with contextlib.suppress(KeyError):
        run(confined, "os._exit(0)", "neighbour")
    until(lambda: has_ended(pid), "the process to end")


def test_what_a_model_starts_ends_with_a_killed_executor(root: Path, tmp_path: Path) -> None:
    """The kernel ends the worker alone."""
    with running(root / "models", tmp_path / "log", "--sandbox-models") as mesh:
        pid = int(run(mesh, ESCAPE))
        assert not has_ended(pid)
        mesh.kill("nereid_executor")
        until(lambda: has_ended(pid), "the process to end")


def test_cpu_time_is_limited(confined: Mesh) -> None:
    with pytest.raises(KeyError):
        run(confined, "while True: pass", "burner")
    assert run(confined, "reply = 1", "burner") == "1"
    text = "instance burner_0_0: the worker of model 'burner' ended with signal SIGXCPU: its CPU"
    assert text in confined.log.read_text()


def test_no_descriptor_but_its_own(confined: Mesh) -> None:
    reply = run(
        confined,
        "reply = [os.readlink(f'/proc/self/fd/{name}') for name in os.listdir('/proc/self/fd')"
        " if os.path.lexists(f'/proc/self/fd/{name}')]",
    )
    for link in ("scheduler.sock", "/models", "/log", "secrets", "segment"):
        assert link not in reply


def test_no_secret_in_the_environment(confined: Mesh) -> None:
    reply = run(confined, "reply = dict(os.environ)")
    assert "NEREID" not in reply
    assert "hunter2" not in reply


def test_facts_say_what_is_confined(confined: Mesh) -> None:
    hello = "workers of models are confined"
    (line,) = [line for line in confined.log.read_text().splitlines() if hello in line]
    assert "in part" not in line


def test_a_kernel_without_namespaces(tmp_path: Path) -> None:
    """Docker's default profile forbids them; the rest holds."""
    module = provided_protection.__module__
    code = (
        f"from {module} import provided_protection; from pathlib import Path\n"
        f"print(provided_protection(Path({str(tmp_path)!r})))"
    )
    limit = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "-U", "-r", "sh", "-c", limit, "sh", sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    provided = ast.literal_eval(output)
    (missing,) = missing_protection(provided)
    assert missing.startswith("no user namespaces: models share /dev/shm")


def test_lines_cannot_be_forged(confined: Mesh) -> None:
    run(confined, "os.write(2, b'2026-01-01 INFO neighbour_0: forged\\n')")
    until(lambda: "forged" in confined.log.read_text(), "what the model writes")
    lines = confined.log.read_text().splitlines()
    assert "prober_0_0: 2026-01-01 INFO neighbour_0: forged" in lines


def test_its_connection_makes_no_other_calls(confined: Mesh) -> None:
    """The connection ends instead, and the request runs again on the next one."""
    assert run(confined, IMPOSTOR) == "again"
    assert run(confined, "reply = 1", "neighbour") == "1"


def test_false_frames_concern_nobody_else(confined: Mesh) -> None:
    assert run(confined, f"CALL = None\n{LIAR}") == "done"
    until(lambda: "by frame" in confined.log.read_text(), "the false line")
    (line,) = [line for line in confined.log.read_text().splitlines() if "by frame" in line]
    assert r"prober_0_0: x\n2026-01-01 INFO neighbour_0: by frame" in line
    counts = confined.counts("neighbour")
    with contextlib.suppress(KeyError):
        # Its worker may end when the response to a call arrives that it has not made.
        run(confined, f"CALL, TENSORS = {UNLOAD}, 0\n{LIAR}")
    assert run(confined, "reply = 1", "neighbour") == "1"
    assert confined.counts("neighbour") != counts


def test_a_frame_that_its_executor_would_have_to_hold_ends_the_worker(confined: Mesh) -> None:
    with pytest.raises(KeyError):
        run(confined, FLOOD, "neighbour")
    text = "malformed message from its worker: a frame is too large"
    assert text in confined.log.read_text()
    assert run(confined, "reply = 1", "neighbour") == "1"


def test_calls_are_of_the_models_that_the_operator_allows(confined: Mesh) -> None:
    counts = confined.counts("prober")
    reply = run(confined, FORBIDDEN_CALLS, "neighbour")
    assert reply.count("may not call model 'prober'") == 2
    with contextlib.suppress(KeyError):
        # Its worker may end when the response to a call arrives that it has not made.
        run(confined, f"CALL, TENSORS = {FORGED_CALL}, 1\n{LIAR}", "neighbour")
    assert run(confined, "reply = 1", "neighbour") == "1"
    assert confined.counts("prober") == counts


def test_ordinary_work(confined: Mesh) -> None:
    assert run(confined, POOLS) == "[1, 2, 3]"
    assert run(confined, CALL) == "42"
    assert run(confined, "import tempfile; tempfile.NamedTemporaryFile().write(b'x')") == "done"
    assert run(confined, "open(pb_utils.get_model_dir() + '/weights.bin').read()") == "done"
