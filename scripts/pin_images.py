"""Write the digests of base images behind their tags in deploy/Dockerfile and docker-compose.yml.

The script gets the digests from the images' registries, by `docker buildx imagetools inspect`,
which needs no engine. With a digest, exactly the image that was checked is pulled from then on.
Dependabot renews tag and digest together.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Defaults of arguments and variables: ARG X_IMAGE=name:tag, ${X_IMAGE:-name:tag}.
_IMAGE = re.compile(r"(_IMAGE(?:=|:-))([a-z0-9./-]+:[\w.-]+)(?:@sha256:[0-9a-f]{64})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def main() -> None:
    """Pin the images of all files."""
    texts = {
        path: (ROOT / path).read_text() for path in ("deploy/Dockerfile", "docker-compose.yml")
    }
    images = {found[2] for text in texts.values() for found in _IMAGE.finditer(text)}
    digests = {image: digest_of(image) for image in sorted(images)}

    def pinned(found: re.Match[str]) -> str:
        """Return the text for an image that was found, with the digest after the tag."""
        return f"{found[1]}{found[2]}@{digests[found[2]]}"

    for path, text in texts.items():
        (ROOT / path).write_text(_IMAGE.sub(pinned, text))
    for image, digest in digests.items():
        print(f"{image}@{digest}")


def digest_of(image: str) -> str:
    """Return the digest of the image's index, which covers all platforms, from the registry."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}"]
    done = subprocess.run([*command, image], capture_output=True, text=True, check=False)
    digest = done.stdout.strip()
    if done.returncode or not _DIGEST.fullmatch(digest):
        sys.exit(
            f"{image}: no digest from its registry; nothing was written: {done.stderr.strip()}"
        )
    return digest


if __name__ == "__main__":
    main()
