"""The modules of a worker in Nereid's own Python: each loaded once, and what a model finds."""

import os
import subprocess
import sys
from pathlib import Path

import nereid
import nereid_executor
from nereid_executor.backends.python import direct, worker_site

SITE = worker_site.__path__[0]
SOURCES = os.pathsep.join(
    dict.fromkeys(str(Path(each.__path__[0]).parent) for each in (nereid, nereid_executor))
)
# Runs in the place of nereid_worker.runtime.process.main, once everything is imported.
PROGRAM = """
import os, runpy, sys
from importlib import import_module

def main(run):
    workers = [name for name in sys.modules if "nereid_worker" in name]
    assert all(name.startswith("nereid_") for name in workers), workers
    assert not {*SOURCES} & {*sys.path} and sys.path[0] == SITE, sys.path
    package = workers[0].partition("nereid_worker")[0] + "nereid_worker"
    import_module(package + ".pb_utils.modules").register()
    # A model's own folder comes last on its path.
    sys.path.append(MODEL)
    import triton_python_backend_utils as utils
    assert utils.Tensor is import_module(package + ".pb_utils.tensors").Tensor
    import nereid
    assert not hasattr(nereid, "WHOSE")
    import helper
    print(run.keywords["stream_server"].__name__, helper.WHOSE)

SITE, JOINED, DIRECT, MODEL = sys.argv[1:]
SOURCES = JOINED.split(os.pathsep)
sys.path[:0] = SOURCES
process = import_module(
    "nereid_executor.backends.python.worker_site.nereid_worker.runtime.process"
)
process.main = main
del sys.path[: len(SOURCES)]
sys.argv = [DIRECT, JOINED]
runpy.run_path(DIRECT, run_name="__main__")
"""


def test_a_model_finds_nereids_package_and_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "nereid").mkdir()
    (tmp_path / "nereid" / "__init__.py").write_text('WHOSE = "the model\'s"')
    (tmp_path / "helper.py").write_text('WHOSE = "the model\'s"')
    command = [sys.executable, "-c", PROGRAM, SITE, SOURCES, direct.__path__[0], str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={"PYTHONPATH": ""}
    )
    assert (done.stdout, done.stderr) == ("DirectServer the model's\n", "")
