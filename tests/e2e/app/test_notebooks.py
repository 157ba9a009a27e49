"""The cells of the page about notebooks, run as a kernel does: no file, and a running loop."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "model-authors" / "notebooks.md"
# What ipykernel does with a cell, without its 30 packages: it compiles it with await at the top
# level, and runs it in the namespace of __main__, in the event loop that serves the kernel.
_KERNEL = """
import ast, asyncio, inspect

async def run(cells):
    for cell in cells:
        code = compile(cell, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, globals())
        if inspect.isawaitable(result):
            await result

asyncio.run(run({cells!r}))
"""


def test_the_pages_cells_run_in_a_running_event_loop() -> None:
    cells = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(cells) == 3
    cells[1] = cells[1].replace("await mesh", "awaited = await mesh") + "print(awaited)\n"
    done = subprocess.run(
        [sys.executable, "-"], input=_KERNEL.format(cells=cells),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[[2. 2. 2. 2.]]"] * 2 + ["[[6. 6. 6. 6.]]"]
