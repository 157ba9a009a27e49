"""Real libraries in confined models: the same results as without the sandbox."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_executor.backends.python.sandbox.policy import provided_protection
from tests.support.mesh.mesh import Mesh, running
from tests.support.models import python_models

pytestmark = pytest.mark.slow

# On a busy machine torch takes half a minute to import, and numba to compile.
_TIMEOUT_S = 300
_FREE = "--sandbox-models=false"
# Packages of the tests' own environment.
PROGRAMS = {
    "numpy and scipy": """
import scipy.linalg, scipy.optimize, scipy.signal
matrix = np.random.default_rng(7).normal(size=(200, 200))
solved = scipy.linalg.solve(matrix, np.ones(200))
fit = scipy.optimize.minimize(lambda x: ((x - [1, 2]) ** 2).sum(), [0, 0])
reply = [np.allclose(matrix @ solved, 1), fit.x.round(3).tolist(),
         scipy.signal.convolve([1, 2, 3], [1, 1]).tolist()]
""",
    "tokenizers": """
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
texts = ["the nereids live in the sea", "the sea is deep", "deep seas"] * 50
tokenizer.train_from_iterator(texts, trainer)
tokenizer.save("tokenizer.json")
again = Tokenizer.from_file("tokenizer.json")
reply = [each.ids for each in again.encode_batch(texts[:3] * 100)][:3]
""",
    "onnxruntime": """
import onnxruntime, onnx
from onnx import helper, TensorProto
graph = helper.make_graph(
    [helper.make_node("MatMul", ["X", "X"], ["Y"])], "square",
    [helper.make_tensor_value_info("X", TensorProto.FLOAT, [4, 4])],
    [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [4, 4])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
onnx.save(model, "square.onnx")
session = onnxruntime.InferenceSession("square.onnx", providers=["CPUExecutionProvider"])
reply = session.run(None, {"X": np.eye(4, dtype=np.float32) * 3})[0].diagonal().tolist()
""",
    "Pillow": """
import io
from PIL import Image, ImageDraw, ImageFont
image = Image.new("RGB", (64, 64), "navy")
ImageDraw.Draw(image).text((5, 5), "sea", font=ImageFont.load_default(), fill="white")
file = io.BytesIO()
image.rotate(30).resize((32, 32)).save(file, "PNG")
reply = int(np.asarray(Image.open(io.BytesIO(file.getvalue()))).sum())
""",
    "matplotlib": """
import io, matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot
figure, axes = pyplot.subplots()
axes.plot([1, 2, 3])
axes.set_title("waves")
file = io.BytesIO()
figure.savefig(file, format="png", metadata={"Software": None})
pyplot.close(figure)
reply = len(file.getvalue()) > 5000, os.path.basename(matplotlib.get_configdir())
""",
    "process pools": """
import concurrent.futures, multiprocessing
replies = []
for method in ("fork", "spawn", "forkserver"):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        replies.append(list(pool.map(pow, range(5), range(5))))
    queue, lock = context.Queue(), context.Lock()
    with lock:
        process = context.Process(target=queue.put, args=(method,))
        process.start()
    replies.append(queue.get(timeout=60))
    process.join()
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=1000)
array = np.ndarray((125,), np.float64, memory.buf)
array[:] = 2
with multiprocessing.get_context("fork").Pool(2) as pool:
    replies.append(sum(pool.map(float, array.tolist())))
with multiprocessing.Manager() as manager:
    shared = manager.dict(a=1)
    replies.append(dict(shared))
del array
memory.close()
memory.unlink()
reply = replies
""",
    "joblib": """
import joblib
cached = joblib.Memory("cache", verbose=0).cache(pow)
parallel = joblib.Parallel(n_jobs=2, backend="multiprocessing")
reply = [parallel(joblib.delayed(pow)(each, 2) for each in range(10)), cached(2, 5), cached(2, 5)]
""",
    "threads and asyncio": """
import asyncio, concurrent.futures
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    first = sum(pool.map(lambda each: each * each, range(100)))
async def work():
    process = await asyncio.create_subprocess_exec("echo", "sea", stdout=-1)
    output, _ = await process.communicate()
    later = await asyncio.gather(*(asyncio.to_thread(pow, 2, each) for each in range(5)))
    return output, later
import threading
second = []
thread = threading.Thread(target=lambda: second.append(asyncio.run(work())))
thread.start()
thread.join()
reply = [first, second]
""",
    "tools": """
import shutil, sqlite3, subprocess, tempfile, fcntl
from pathlib import Path
first = subprocess.run("echo sea | tr a-z A-Z; nproc >/dev/null && date -u -d @0 +%Y", shell=True,
                       capture_output=True, text=True).stdout
with tempfile.NamedTemporaryFile() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
database = sqlite3.connect(Path.home() / "rows.db")
database.execute("pragma journal_mode=wal")
database.execute("create table if not exists rows (x)")
database.execute("insert into rows values (5)")
database.commit()
second = database.execute("select max(x) from rows").fetchall()
(Path.home() / ".cache" / "library").mkdir(parents=True, exist_ok=True)
reply = [first, second, shutil.disk_usage(Path.home()).total > 0]
""",
    "the system": """
import getpass, locale, os, pwd, ssl, time, zoneinfo, multiprocessing, platform, uuid
context = ssl.create_default_context()
reply = [time.tzname, pwd.getpwuid(0).pw_name, str(zoneinfo.ZoneInfo("Europe/Athens")),
         multiprocessing.cpu_count(), os.cpu_count(), len(os.sched_getaffinity(0)),
         platform.platform(), "MemTotal" in open("/proc/meminfo").read(),
         "VmRSS" in open("/proc/self/status").read(), os.path.exists("/proc/self/maps"),
         bool(open("/proc/self/cgroup").read()), os.path.isdir("/sys/devices/system/cpu"),
         getpass.getuser(), os.access(os.path.expanduser("~"), os.W_OK),
         bool(open("/proc/cpuinfo").read()), len(os.urandom(8)), uuid.uuid4().version]
""",
}
# Packages that an environment of the models brings.
PACKAGES = ("torch==2.13.0", "opencv-python-headless", "numba", "numpy<2.5")
PACKAGED_PROGRAMS = {
    "torch": """
import torch
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 64).reshape(8, 8)
for _ in range(20):
    optimizer.zero_grad()
    loss = ((net(x) - 1) ** 2).mean()
    loss.backward()
    optimizer.step()
torch.save(net.state_dict(), "net.pt")
net.load_state_dict(torch.load("net.pt"))
loader = torch.utils.data.DataLoader(torch.arange(32), batch_size=8, num_workers=2)
scripted = torch.jit.trace(net, x)
reply = [round(loss.item(), 4), sum(int(batch.sum()) for batch in loader),
         round(scripted(x).sum().item(), 3)]
""",
    "OpenCV": """
import cv2
image = np.zeros((200, 200, 3), np.uint8)
cv2.circle(image, (100, 100), 50, (255, 255, 255), -1)
_, encoded = cv2.imencode(".png", image)
edges = cv2.Canny(cv2.GaussianBlur(cv2.imdecode(encoded, 1), (5, 5), 0), 50, 150)
contours, _ = cv2.findContours(edges, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
cv2.imwrite("edges.jpg", edges)
reply = [int(edges.sum()), len(contours), cv2.imread("edges.jpg").shape]
""",
    "numba": """
import numba
@numba.njit(parallel=True)
def total(values):
    result = 0.0
    for index in numba.prange(len(values)):
        result += values[index]
    return result
reply = total(np.arange(1000.0))
""",
}


@pytest.fixture(scope="module", autouse=True)
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not provided_protection(tmp_path_factory.mktemp("probe")).get("landlock"):
        pytest.skip("no Landlock")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the packages."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=True)
    command = [str(directory / "bin" / "pip"), "install", "--quiet", *PACKAGES]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"the packages cannot be installed: {installed.stderr[-300:]}")
    return directory


def _mesh(root: Path, python: Path | None, *flags: str) -> Iterator[Mesh]:
    config = python_models.PROBER
    if python is not None:
        config += (
            f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{python}" }} }}\n'
        )
    python_models.save(root / "models", "prober", config, "prober")
    with running(root / "models", root / "log", *flags) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    yield from _mesh(tmp_path_factory.mktemp("confined"), None, "--sandbox-models")


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    yield from _mesh(tmp_path_factory.mktemp("free"), None, _FREE)


@pytest.fixture(scope="module")
def confined_packages(
    tmp_path_factory: pytest.TempPathFactory, environment: Path
) -> Iterator[Mesh]:
    yield from _mesh(tmp_path_factory.mktemp("packages"), environment, "--sandbox-models")


@pytest.fixture(scope="module")
def free_packages(tmp_path_factory: pytest.TempPathFactory, environment: Path) -> Iterator[Mesh]:
    yield from _mesh(tmp_path_factory.mktemp("free_packages"), environment, _FREE)


def _run(mesh: Mesh, program: str) -> str:
    # Files that a program makes lie in a directory that it may write to.
    code = "import tempfile\nos.chdir(tempfile.mkdtemp())\n" + program
    tensor = {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}
    connection = http.client.HTTPConnection(mesh.http, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("POST", "/v2/models/prober/infer", json.dumps({"inputs": [tensor]}))
        response = json.loads(connection.getresponse().read())
    reply = str(response["outputs"][0]["data"][0])
    # The exception of a program that failed.
    assert "Error: " not in reply, reply
    return reply


@pytest.mark.parametrize("name", PROGRAMS)
def test_libraries(confined: Mesh, free: Mesh, name: str) -> None:
    assert _run(confined, PROGRAMS[name]) == _run(free, PROGRAMS[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", PACKAGED_PROGRAMS)
def test_packages(confined_packages: Mesh, free_packages: Mesh, name: str) -> None:
    program = PACKAGED_PROGRAMS[name]
    assert _run(confined_packages, program) == _run(free_packages, program)
