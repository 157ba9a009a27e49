"""A row: some requests in order, and the responses that the real server gave to them.

`expected/` holds these, a file for each group. Where Nereid differs on purpose, the row names the
difference and the file holds Nereid's response as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.conformance.differences import Difference, difference_of
from tests.conformance.exchange import Http, NoResponseError, Server, Step

# What both servers are started with, by name.
SERVERS: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "explicit": ("--model-control-mode=explicit", "--load-model=add_sub", "--load-model=versions"),
    "python": (
        "--model-control-mode=explicit",
        "--load-model=*",
        "--cache-config=local,size=1048576",
    ),
    "sequences": ("--model-control-mode=explicit", "--load-model=*"),
    "life-cycle": ("--model-control-mode=explicit", "--load-model=counted"),
    "drain": ("--exit-timeout-secs=20",),
}
# What members of JSON documents are set to, to see what becomes of it.
ODD_VALUES: Final[tuple[Any, ...]] = (
    True,
    False,
    0,
    1,
    -1,
    1.5,
    "x",
    "",
    "1",
    None,
    [],
    {},
    [1],
    ["x"],
    1 << 32,
)
# Up to the end, or to that of a JSON string.
_POLL_REASON: Final = re.compile(r'(failed to poll from model repository): .*?("?)$', re.DOTALL)
EXPECTED: Final = Path(__file__).with_name("expected")


@dataclass(frozen=True)
class Row:
    """Some requests; the last responses may depend on what the first ones changed."""

    name: str
    steps: tuple[Step, ...]
    # What of the responses counts.
    view: Callable[[Any], Any] | None = None
    # Which of SERVERS it is for.
    server: str = "default"
    # A feature that Nereid does not have yet.
    missing: str = ""

    @property
    def differs(self) -> Difference | None:
        return difference_of(self.name)

    @property
    def ends_server(self) -> bool:
        return self.server == "drain"

    @property
    def group(self) -> str:
        return group_of(self.name)

    def ask(self, server: Server) -> Any:
        """The responses of one server; "no response" is one too."""
        responses = []
        for step in self.steps:
            try:
                response = server.ask(step)
            except NoResponseError:
                response = "no answer"
            responses.append(self.view(response) if self.view else response)
        return responses[0] if len(responses) == 1 else responses


def row(name: str, *steps: Step, **more: Any) -> Row:
    return Row(name, steps, **more)


def post(target: str, document: Any = None, body: bytes | None = None) -> Http:
    content = (
        body if body is not None else b"" if document is None else json.dumps(document).encode()
    )
    return Http("POST", f"/v2/{target}", content)


def grouped(group: str, rows: Iterable[Row], **more: Any) -> list[Row]:
    """The rows with the group's name before theirs."""
    return [replace(each, name=f"{group}/{each.name}", **more) for each in rows]


def group_of(name: str) -> str:
    """Rows of one group are tested together and recorded in one file."""
    first, second, *_ = name.split("/")
    return f"{first}/{second}" if first in {"http", "grpc", "python"} else first


def load_expected() -> dict[str, dict[str, Any]]:
    """By row: {"triton": responses, "nereid": responses where they differ on purpose}."""
    expected: dict[str, dict[str, Any]] = {}
    for file in sorted(EXPECTED.glob("*.json")):
        expected |= json.loads(file.read_text())
    return expected


def save_expected(expected: dict[str, dict[str, Any]]) -> None:
    """A file for each group, a line for each row: a changed response is a changed line."""
    lines: dict[str, list[str]] = {}
    for name in sorted(expected):
        line = f"{json.dumps(name)}: {json.dumps(expected[name], sort_keys=True)}"
        lines.setdefault(group_of(name), []).append(line)
    EXPECTED.mkdir(exist_ok=True)
    for file in EXPECTED.glob("*.json"):
        file.unlink()
    for group, rows in lines.items():
        file = EXPECTED / f"{group.replace('/', '-')}.json"
        file.write_text("{\n" + ",\n".join(rows) + "\n}\n")


# --- views --------------------------------------------------------------------------------------


def without_poll_reasons(response: Any) -> Any:
    """Triton does not say why a model could not be read."""
    if isinstance(response, str):
        return _POLL_REASON.sub(r"\1\2", response)
    if isinstance(response, dict):
        return {key: without_poll_reasons(each) for key, each in response.items()}
    if isinstance(response, list):
        return [without_poll_reasons(each) for each in response]
    return response


def without_texts(response: Any) -> Any:
    """Errors count by their codes; the texts are the backends' own."""
    if isinstance(response, dict):
        response = {key: each for key, each in response.items() if key not in {"details", "text"}}
        if isinstance(response.get("json"), dict) and "error" in response["json"]:
            response["json"] = "error"
    return response
