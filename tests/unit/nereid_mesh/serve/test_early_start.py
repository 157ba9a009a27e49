"""Which processes are started before a mesh is planned."""

import pytest

from nereid_mesh.serve.early_start import likely_programs

JOINED = ("nereid_mesh.serve.joined",)
WITH_EXECUTOR = ("nereid_mesh.serve.joined", "--with-executor")
EXECUTOR = ("nereid_executor",)
APART = (("nereid_gateway",), ("nereid_scheduler",), EXECUTOR)


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        (["--model-repository=m"], {}, (JOINED, EXECUTOR)),
        (["--join", "all"], {}, (WITH_EXECUTOR,)),
        (["--join=all", "--join=scheduler"], {}, (JOINED, EXECUTOR)),
        (["--join=none"], {}, APART),
        # Their arguments say which is which.
        (["--gateways=2"], {}, ()),
        (["--schedulers", "3"], {}, ()),
        (["--executors=2"], {}, ()),
        (["--gateways=1", "--schedulers=1"], {}, (JOINED, EXECUTOR)),
        ([], {"NEREID_JOIN": "all"}, (WITH_EXECUTOR,)),
        (["--join=auto"], {"NEREID_JOIN": "all"}, (JOINED, EXECUTOR)),
        # The plan reports the error.
        (["--join=everything"], {}, ()),
        (["--join"], {}, (JOINED, EXECUTOR)),
        (["--help"], {}, ()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_say_which_processes_are_likely(
    argv: list[str], environ: dict[str, str], expected: tuple[tuple[str, ...], ...]
) -> None:
    assert likely_programs(argv, environ) == expected
