"""Writes raw records: a CSV file with one line for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from nereid_perf.workers.rows import CANCELLED, OK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from nereid_perf.measurement import LoadLevel

_HEADER: Final = (
    "kind,value,intended_ns,sent_ns,first_ns,last_ns,workload,responses,outcome"
    ",input_tokens,output_tokens\n"
)


class RecordFile:
    """A file of records, with times in ns since the beginning of the level.

    A time is empty if the request did not get that far. outcome: "ok", "cancelled" or an error's
    text.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._file.write(_HEADER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._file.close()

    def write(
        self, rows: NDArray[np.void], level: LoadLevel, start_ns: int, texts: Sequence[str]
    ) -> None:
        """Write the rows of one level."""
        quoted = ['"' + text.replace('"', '""').replace("\n", " ") + '"' for text in texts]
        names = {OK: "ok", CANCELLED: "cancelled"}
        names |= {CANCELLED + 1 + number: text for number, text in enumerate(quoted)}
        lines = []
        for *times, workload, responses, outcome, inputs, outputs in rows.tolist():
            relative = ",".join(str(time - start_ns) if time else "" for time in times)
            lines.append(
                f"{level.kind},{level.value:g},{relative},{workload},{responses},{names[outcome]}"
                f",{inputs},{outputs}\n"
            )
        self._file.writelines(lines)
