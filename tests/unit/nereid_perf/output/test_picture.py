import subprocess
import sys
from pathlib import Path

import pytest

from nereid_perf.output.page import named_servers
from nereid_perf.output.picture import PictureError, write_png
from tests.support import perf_results
from tests.support.measurements import concurrency, measured

_PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("name", ["sweep", "rate_search", "comparison"])
def test_a_picture(name: str, tmp_path: Path) -> None:
    result = getattr(perf_results, name)()
    write_png(named_servers({"r": result}), 99, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(_PNG)


def test_of_one_level_the_percentiles_are_drawn(tmp_path: Path) -> None:
    level = measured(concurrency(4), [1000, 2000])
    write_png({"r": perf_results.server(level)}, 99, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(_PNG)


def test_there_is_no_picture_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="nothing was measured"):
        write_png({"r": perf_results.server()}, 99, tmp_path / "f.png")


def test_without_matplotlib_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path\n"
        "from nereid_perf.output.picture import PictureError, write_png\n"
        "try: write_png({}, 99, Path('x'))\n"
        "except PictureError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "--png needs matplotlib: pip install matplotlib\n"
