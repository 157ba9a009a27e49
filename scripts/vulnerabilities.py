"""Add the vulnerabilities of NVIDIA's bulletins to tests/vulnerabilities/triton.toml.

usage: vulnerabilities.py BULLETIN ...

BULLETIN is a bulletin of Triton in CSAF 2.0 (https://github.com/NVIDIA/product-security,
YEAR/ID/ID.json). A new vulnerability gets a row without the fields `where`, `held` and `tests`,
which tests/unit/scripts/test_vulnerabilities.py asks for. A known one gets the bulletin's number.
The script exits with 2, and changes nothing, if a file is no such bulletin.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
CORPUS: Final = ROOT / "tests" / "vulnerabilities" / "triton.toml"
_PRODUCT: Final = "Triton Inference Server"
_CVE: Final = re.compile(r"CVE-\d{4}-\d{4,7}")
_CWE: Final = re.compile(r"CWE-\d{1,5}")
_BULLETIN: Final = re.compile(r"\d{4,6}")
_MAX_SCORE: Final = 10.0
_HEADER: Final = """\
# Published vulnerabilities of Triton Inference Server, from NVIDIA's security bulletins. Each has
# tests that show that the same does not happen here, or is not applicable, for the reason in
# `held`. `where` says what is published about the place. `control` is a test that shows
# it on a real Triton. scripts/vulnerabilities.py adds bulletins, and
# scripts/vulnerability_reference.py writes the page.
"""


class BulletinError(Exception):
    """A file that is not a bulletin of Triton."""


@dataclass
class Vulnerability:
    """One row of the corpus."""

    id: str
    bulletins: list[str]
    cwe: str
    score: float
    where: str = ""
    held: str = ""
    # Node ids. Without one, the vulnerability cannot apply.
    tests: tuple[str, ...] = ()
    control: str = ""


def read_corpus(path: Path = CORPUS) -> list[Vulnerability]:
    """Return the rows of the corpus. Raises TypeError if a row has an unknown field."""
    with path.open("rb") as file:
        rows = tomllib.load(file).get("vulnerability", [])
    return [Vulnerability(**row | {"tests": tuple(row.get("tests", ()))}) for row in rows]


def write_corpus(rows: list[Vulnerability], path: Path = CORPUS) -> None:
    """Write the rows in the order of their bulletins and ids."""
    ordered = sorted(rows, key=lambda row: (int(row.bulletins[0]), row.id))
    path.write_text("\n".join([_HEADER, *map(_as_toml, ordered)]))


def _as_toml(row: Vulnerability) -> str:
    lines = ["[[vulnerability]]"]
    for field in fields(row):
        value = getattr(row, field.name)
        if field.name == "tests":
            texts = "".join(f"    {json.dumps(test)},\n" for test in value)
            lines.append(f"tests = [\n{texts}]" if value else "tests = []")
        elif value != "" or field.name != "control":
            # What JSON writes for these is TOML as well.
            lines.append(f"{field.name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def read_bulletin(text: str) -> list[Vulnerability]:
    """Return the vulnerabilities of a bulletin. Raises BulletinError."""
    try:
        document = json.loads(text)
        about = document["document"]
        tracking = about["tracking"]
        found = document["vulnerabilities"]
        if about["category"] != "csaf_security_advisory" or about["csaf_version"] != "2.0":
            raise BulletinError("it is no security advisory of CSAF 2.0")
        if _PRODUCT not in about["title"]:
            raise BulletinError(f"it is about {about['title']!r}")
        if not found:
            raise BulletinError("it has no vulnerability")
        number = _matching(_BULLETIN, tracking["id"])
        rows = [_row(number, vulnerability) for vulnerability in found]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BulletinError(f"{type(error).__name__}: {error}") from error
    if len({row.id for row in rows}) != len(rows):
        raise BulletinError("it has a vulnerability twice")
    return rows


def _row(bulletin: str, found: dict[str, Any]) -> Vulnerability:
    score = found["scores"][0]["cvss_v3"]["baseScore"]
    if type(score) not in {int, float} or not 0 <= score <= _MAX_SCORE:
        raise BulletinError(f"{score!r} is no score")
    cve, cwe = _matching(_CVE, found["cve"]), _matching(_CWE, found["cwe"]["id"])
    return Vulnerability(cve, [bulletin], cwe, float(score))


def _matching(pattern: re.Pattern[str], text: object) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise BulletinError(f"{text!r} is not of the form {pattern.pattern}")
    return text


def add(rows: list[Vulnerability], bulletin: list[Vulnerability]) -> list[str]:
    """Add a bulletin's vulnerabilities to the rows, and return the ids of the new ones."""
    known = {row.id: row for row in rows}
    new = []
    for row in bulletin:
        if row.id not in known:
            known[row.id] = row
            rows.append(row)
            new.append(row.id)
        elif row.bulletins[0] not in known[row.id].bulletins:
            known[row.id].bulletins.append(row.bulletins[0])
    return new


def main(corpus: Path = CORPUS) -> int:
    """Add the bulletins of the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bulletin", nargs="+", type=Path)
    rows, new = read_corpus(corpus), []
    for path in parser.parse_args().bulletin:
        try:
            new += add(rows, read_bulletin(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, BulletinError) as error:
            print(f"{path} is not a bulletin of {_PRODUCT}: {error}", file=sys.stderr)
            return 2
    write_corpus(rows, corpus)
    print(*[f"{cve}: fill in where, held and tests" for cve in new], sep="\n")
    print(f"{len(new)} new, {len(rows)} vulnerabilities")
    return 0


if __name__ == "__main__":
    sys.exit(main())
