"""Write docs/reference/flags.md from the settings classes; --check: exit with 1 if it differs.

usage: flag_reference.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nereid.config.flags import DeclaredFlag, declared_flags, flags_by_topic
from nereid_cache.settings import CacheSettings
from nereid_executor.settings import ExecutorSettings
from nereid_gateway.settings import GatewaySettings
from nereid_mesh.serve.settings import ServeSettings
from nereid_mesh.serve.triton_flags import TritonFlags
from nereid_scheduler.settings import Settings as SchedulerSettings
from scripts.reference_page import table, write_or_check

_SERVICES = {
    "nereid serve": (ServeSettings, TritonFlags),
    "gateway": (GatewaySettings,),
    "scheduler": (SchedulerSettings,),
    "executor": (ExecutorSettings,),
    "cache": (CacheSettings,),
}
# A flag that all of these services have has "all" in the column of services.
_MESH = {"gateway", "scheduler", "executor", "cache"}
_INTRODUCTION = """\
# Flags

<!-- Written by scripts/flag_reference.py from the settings classes. -->

`nereid serve` takes all of these; a service that is started alone (`python -m
nereid_gateway`) takes those of its column. Each has an environment variable, that of
`--http-port` being `NEREID_HTTP_PORT`. A flag wins over its variable, and the last of equal flags
counts, unless it may be repeated: then the values add up, and are separated by `;` in the variable.
`nereid serve --config FILE` reads flags from TOML; the command line and variables win over it.
`nereid serve` chooses the addresses between its own services itself.
"""
# The page says this once for all such flags.
_WITHOUT_EFFECT = ("accepted and ignored", "Triton's; changes nothing here")
_HEADER = ("Flag", "Default", "Services", "Meaning")


def page() -> str:
    """Return the text of the page."""
    # Services declare some flags alike: these share a row.
    flags: dict[tuple[str, str, str], DeclaredFlag] = {}
    services: dict[tuple[str, str, str], list[str]] = {}
    for service, classes in _SERVICES.items():
        for flag in declared_flags(*classes):
            key = (flag.name, flag.default_text, flag.option.help)
            flags.setdefault(key, flag)
            services.setdefault(key, []).append(service)
    parts = [_INTRODUCTION]
    keys = {id(flag): key for key, flag in flags.items()}
    ignored = []
    for topic, members in flags_by_topic(flags.values()):
        ignored += [flag.name for flag in members if flag.option.help in _WITHOUT_EFFECT]
        rows = [
            _row(flag, services[keys[id(flag)]]) for flag in members if flag.name not in ignored
        ]
        parts.append(f"\n## {topic.value if topic else 'Other'}\n\n{table(_HEADER, rows)}")
    listed = ", ".join(f"`{name}`" for name in ignored)
    parts.append(f"\nAccepted without effect: {listed}.\n")
    return "".join(parts)


def _row(flag: DeclaredFlag, services: list[str]) -> tuple[str, ...]:
    names = [f"`{name}`" for name in (flag.name, *flag.option.aliases)]
    notes = [flag.option.help]
    if flag.option.repeated and "several times" not in flag.option.help:
        notes.append("repeatable")
    if flag.option.hardened is not None:
        notes.append(f"with `--hardened`: `{flag.option.hardened}`")
    if (platform := flag.option.platform) is not None:
        cases = (platform.texts or {}).items()
        texts = ", ".join(f"`{name}`: `{text}`" for name, text in cases)
        notes.append(f"default from `{platform.name}`" + (f" ({texts})" if texts else ""))
    older = ", ".join(f"`{name}`" for name in flag.option.deprecated)
    if older:
        notes.append(f"older forms: {older}")
    default = (
        "(required)" if flag.required else f"`{flag.default_text}`" if flag.default_text else ""
    )
    where = "all" if set(services) >= _MESH else ", ".join(services)
    return ", ".join(names), default, where, "; ".join(notes)


if __name__ == "__main__":
    sys.exit(write_or_check("flags.md", page(), __doc__.partition("\n")[0]))
