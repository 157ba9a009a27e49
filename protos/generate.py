"""Generate nereid/pb from protos/*.proto; `--check` fails if what is committed differs.

`--record` is for a release: it writes down the contract as it is in released.binpb, which services
of the next release have to understand (tests/contract/test_wire_contract.py). `--check-recorded`
fails if that was not done.

Every generated module registers its descriptors in one private pool (nereid/pb/_pool.py) instead of
protobuf's process-wide one, where package `inference` would clash with tritonclient's own stubs.
"""

from __future__ import annotations

import filecmp
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).parent
TARGET = PROTOS.parent / "nereid" / "pb"
NAMES = ("model_config", "kserve", "nereid")


def generate(target: Path) -> None:
    """Write `<name>_pb2.py` and `.pyi` for every proto into target."""
    sources = [f"{name}.proto" for name in NAMES]
    arguments = ["protoc", f"-I{PROTOS}", f"--python_out={target}", f"--pyi_out={target}", *sources]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed")
    for name in NAMES:
        module = target / f"{name}_pb2.py"
        module.write_text(_with_private_pool(module.read_text()))
        stub = target / f"{name}_pb2.pyi"
        stub.write_text(_with_package_imports(stub.read_text()))


def _with_private_pool(text: str) -> str:
    text = text.replace(
        "from google.protobuf import descriptor_pool as _descriptor_pool",
        "from nereid.pb._pool import POOL as _pool",
    )
    text = text.replace("_descriptor_pool.Default()", "_pool")
    return _with_package_imports(text)


def _with_package_imports(text: str) -> str:
    return re.sub(r"^import (\w+_pb2) as", r"from nereid.pb import \1 as", text, flags=re.MULTILINE)


def record(target: Path) -> None:
    """Write the contract's descriptors, without comments."""
    sources = [f"{name}.proto" for name in NAMES]
    if protoc.main(["protoc", f"-I{PROTOS}", f"--descriptor_set_out={target}", *sources]) != 0:
        sys.exit("protoc failed")


def main() -> None:
    """Generate in place, or compare with what is committed; or record the contract."""
    if sys.argv[1:] == ["--record"]:
        record(PROTOS / "released.binpb")
        return
    if sys.argv[1:] == ["--check-recorded"]:
        with tempfile.TemporaryDirectory() as directory:
            present = Path(directory) / "present.binpb"
            record(present)
            if present.read_bytes() != (PROTOS / "released.binpb").read_bytes():
                sys.exit("protos/released.binpb is not the present contract: --record it")
        return
    if sys.argv[1:] != ["--check"]:
        generate(TARGET)
        return
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        files = [path.name for path in Path(directory).iterdir()]
        _, differing, missing = filecmp.cmpfiles(directory, TARGET, files, shallow=False)
    if differing or missing:
        sys.exit(f"nereid/pb is stale ({', '.join(differing + missing)}): run `make proto`")


if __name__ == "__main__":
    main()
