"""`import nereid` imports nothing that services do not use."""

import subprocess
import sys

import pytest

import nereid


def test_the_names_are_imported_when_they_are_used() -> None:
    text = "import nereid, sys; print([name for name in sys.modules if name.startswith('nereid.')])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    for name in nereid.__all__:
        assert getattr(nereid, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        nereid.absent  # noqa: B018
