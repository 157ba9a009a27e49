"""What a bill of materials says of an image's base."""

from __future__ import annotations

import json

from scripts.sbom import components_of

_STATUS = """Package: libstdc++6
Status: install ok installed
Architecture: arm64
Version: 12.2.0-14+deb12u1
Description: GNU Standard C++ Library v3
 This package: has a continued line.

Package: removed
Status: deinstall ok config-files
Architecture: arm64
Version: 1:2.0~rc1-1

Package: epochal
Status: install ok installed
Architecture: all
Version: 1:2.0~rc1-1

"""


def test_python_and_each_installed_package_is_a_component() -> None:
    found = components_of(json.dumps(["3.11.13", "debian", "12", _STATUS]))
    assert [(each["name"], each["version"], each["purl"]) for each in found] == [
        (
            "epochal",
            "1:2.0~rc1-1",
            "pkg:deb/debian/epochal@1%3A2.0~rc1-1?arch=all&distro=debian-12",
        ),
        (
            "libstdc++6",
            "12.2.0-14+deb12u1",
            "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=arm64&distro=debian-12",
        ),
        ("python", "3.11.13", "pkg:generic/python@3.11.13"),
    ]
