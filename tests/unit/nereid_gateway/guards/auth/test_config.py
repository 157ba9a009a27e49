"""What the file of --auth-config may say, and what is said of one that is wrong."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest

from nereid_gateway import settings
from nereid_gateway.core.access.grant import ALL_APIS, Limits
from nereid_gateway.guards.auth.config import AuthConfigError, parse_config, read_config
from nereid_mesh.credentials import api_key

DIGEST = "a" * 64
KEY = f'[[keys]]\nname = "web"\nsha256 = "{DIGEST}"\nrights = ["inference"]\n'
ISSUER = """
[[issuers]]
issuer = "https://login.example.com/"
audience = "nereid"
algorithms = ["RS256"]
jwks_file = "keys.json"
"""


def errors_of(text: str) -> list[str]:
    with pytest.raises(AuthConfigError) as failure:
        parse_config(tomllib.loads(text), Path())
    return failure.value.errors


def test_everything_that_it_may_say() -> None:
    config = parse_config(
        tomllib.loads(f"""
[anonymous]
rights = ["health"]
requests_per_second = 10

[[keys]]
name = "web"
sha256 = ["{DIGEST}", "{"b" * 64}"]
rights = ["inference", "metadata"]
models = ["resnet*"]
requests_per_second = 0.5
concurrency = 8

[roles.operator]
rights = ["all"]
requests_per_second = 20
burst = 100
{ISSUER}roles_claim = "realm_access.roles"
leeway_s = 5
"""),
        Path("/etc/nereid"),
    )
    (key,) = config.keys
    assert (key.name, len(key.digests)) == ("web", 2)
    assert key.grant.permits_model("metadata", "resnet50")
    assert not key.grant.permits_model("inference", "bert")
    # Half a request per second lets one in at a time.
    assert key.grant.limits == Limits(0.5, 1.0, 8)
    assert config.open_apis() == {"health"}
    assert config.anonymous is not None
    assert config.anonymous.limits == Limits(10, 10)
    operator = config.roles["operator"]
    assert all(map(operator.permits, ALL_APIS))
    assert operator.limits == Limits(20, 100)
    (issuer,) = config.issuers
    assert issuer.key_file == Path("/etc/nereid/keys.json")
    assert (issuer.roles_claim, issuer.leeway_s) == ("realm_access.roles", 5)


def test_without_anonymous_no_api_is_open() -> None:
    assert parse_config(tomllib.loads(KEY), Path()).open_apis() == frozenset()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "nobody could authenticate"),
        ("key = []", "the file: unknown setting 'key'"),
        ("keys = 3", r"expected \[\[keys\]\]"),
        ("keys = [3]", r"keys\[0\]: expected a table"),
        (KEY + KEY, "key name 'web' is there twice"),
        (KEY + KEY.replace("web", "other"), f"sha256 '{DIGEST}' is there twice"),
        (KEY.replace("a" * 64, "secret"), "`nereid api-key` makes a key"),
        (KEY.replace("a" * 64, "A" * 64), "64 lower-case hexadecimal digits"),
        (KEY.replace('"web"', '"new\\nline"'), "name must be up to 100 letters"),
        (KEY.replace('["inference"]', '["infer"]'), "'infer': rights are console, health"),
        (KEY.replace('["inference"]', '"inference"'), "rights must be a list of texts"),
        (KEY.replace("rights", "right"), "unknown setting 'right'"),
        (KEY.replace('rights = ["inference"]', ""), "rights is missing"),
        (KEY + "concurrency = 0", "concurrency must be a number of at least 1"),
        (KEY + "requests_per_second = true", "requests_per_second must be a number"),
        (KEY + "requests_per_second = inf", "requests_per_second must be a number"),
        (KEY + "requests_per_second = nan", "requests_per_second must be a number"),
        (KEY + "burst = 3", "burst needs requests_per_second"),
        (ISSUER.replace("RS256", "none"), "algorithms must be some of ES256"),
        # A public key is no secret to sign with.
        (ISSUER.replace("RS256", "HS256"), "algorithms must be some of ES256"),
        (ISSUER.replace("jwks_file", "secret_file"), "some of HS256, HS384, HS512 with secret"),
        (ISSUER + 'secret_file = "x"', "expected one of jwks_file, public_key_file, secret"),
        (ISSUER.replace("audience", "# "), "audience must be a text that is not empty"),
        (ISSUER + ISSUER, "issuer 'https://login.example.com/' is there twice"),
        (KEY + "[roles]\nx = 3", "roles.x: expected a table"),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(AuthConfigError, match=error):
        parse_config(tomllib.loads(text), Path())


def test_all_errors_are_reported_at_once() -> None:
    assert len(errors_of(KEY.replace("inference", "x") + "burst = 0\n" + ISSUER[:30] + '"')) > 4


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    with pytest.raises(AuthConfigError, match="cannot be read: No such file"):
        read_config(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(AuthConfigError, match="not TOML"):
        read_config(path)
    path.write_text("keys = [")
    with pytest.raises(AuthConfigError, match="not TOML"):
        read_config(path)


def test_a_bad_file_ends_the_start_before_a_port_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "auth.toml"
    path.write_text(KEY + "burst = 3\nconcurrency = 0\n" + ISSUER)
    with pytest.raises(SystemExit) as ending:
        settings.read([f"--auth-config={path}"], {})
    assert ending.value.code == 2
    shown = capsys.readouterr().err
    assert f"--auth-config: {path}: keys[0]: burst needs requests_per_second" in shown
    assert "concurrency must be" in shown
    path.write_text(ISSUER)
    with pytest.raises(SystemExit):
        settings.read([f"--auth-config={path}"], {})
    assert "keys.json of issuer 'https://login.example.com/': No such" in capsys.readouterr().err


def test_the_command_makes_a_key_and_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert api_key.main(["web", "--rights=inference,health"]) == 0
    shown = capsys.readouterr()
    key = shown.err.strip()
    assert key.startswith("nereid_")
    assert key not in shown.out
    (entry,) = parse_config(tomllib.loads(shown.out), Path()).keys
    assert entry.digests == (hashlib.sha256(key.encode()).hexdigest(),)
    assert entry.grant.permits("health")
    with pytest.raises(SystemExit):
        api_key.main(["web", "--rights=nothing"])
    assert "'nothing': rights are" in capsys.readouterr().err
