"""Which processes are started before a mesh is planned."""

from pathlib import Path

import pytest

from nereid_mesh.serve.early_start import likely_programs

JOINED = ("nereid_mesh.serve.joined", "nereid_executor")
APART = ("nereid_gateway", "nereid_scheduler", "nereid_executor")


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        (["--model-repository=m"], {}, JOINED),
        (["--join", "none"], {}, APART),
        (["--join=none", "--join=scheduler"], {}, JOINED),
        (["--join=none"], {}, APART),
        # Their arguments say which is which.
        (["--gateways=2"], {}, ()),
        (["--schedulers", "3"], {}, ()),
        (["--executors=2"], {}, ()),
        (["--gateways=1", "--schedulers=1"], {}, JOINED),
        ([], {"NEREID_JOIN": "none"}, APART),
        (["--join=auto"], {"NEREID_JOIN": "none"}, JOINED),
        # The plan reports the error.
        (["--join=all"], {}, ()),
        (["--join"], {}, JOINED),
        (["--help"], {}, ()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_say_which_processes_are_likely(
    argv: list[str], environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert likely_programs(argv, environ) == expected


def test_a_configuration_file_says_which_processes_are_likely(tmp_path: Path) -> None:
    file = tmp_path / "nereid.toml"
    for text, argv, expected in (
        ('join = "none"', [], APART),
        ("gateways = 2", [], ()),
        ("gateways = 2", ["--gateways=1"], JOINED),
        ("gateways = 2", ["--print-config"], ()),
        # The plan reports the error.
        ("gateways", [], JOINED),
    ):
        file.write_text(text)
        assert likely_programs([f"--config={file}", *argv], {}) == expected, text
