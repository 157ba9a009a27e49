"""Nereid's modules in a worker: there when they are needed, and not where a model would look."""

import subprocess
import sys
from pathlib import Path

import nereid
from nereid.services.executor.backends.python import worker_site

SITE = str(Path(worker_site.__file__).parent)
ROOT = str(Path(nereid.__file__).parents[1])
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from nereid_worker import nereid_modules, wire
sys.path.insert(0, sys.argv[3])
import nereid
assert nereid.WHOSE == "the model's"
before = list(sys.path)
supervisor = "nereid.services.executor.backends.python.supervisor"
module = nereid_modules.load([sys.argv[2]], f"{supervisor}.direct_server")
assert module.wire is wire
assert sys.path == before
assert sys.modules["nereid"] is nereid
try:
    nereid_modules.load([sys.argv[2]], "nereid.services.executor.nothing")
except ModuleNotFoundError:
    assert sys.modules["nereid"] is nereid and sys.path == before
    print("well")
"""


def test_a_models_packages_of_the_same_names_stay_its_own(tmp_path: Path) -> None:
    (tmp_path / "nereid").mkdir()
    (tmp_path / "nereid" / "__init__.py").write_text('WHOSE = "the model\'s"')
    command = [sys.executable, "-c", PROGRAM, SITE, ROOT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("well\n", "")
