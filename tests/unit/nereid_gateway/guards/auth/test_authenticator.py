"""Credentials to principals: keys, tokens of real issuers, expiry, reloads, hostile tokens."""

from __future__ import annotations

import base64
import hmac
import json
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nereid_gateway.core.access.principal import Principal
from nereid_gateway.core.access.refusal import CallRefused, Reason
from nereid_gateway.guards.auth.api_key import digest_of, make_key
from nereid_gateway.guards.auth.authenticator import Authenticator, Credentials
from nereid_gateway.guards.auth.config import AuthConfigError, parse_config
from nereid_gateway.guards.auth.reload import load_config
from nereid_gateway.guards.auth.tokens import TokenVerifier

PEER = "10.0.0.1:5000"
KEY, OTHER = make_key(), make_key()
ISSUER = "https://login.example.com/"
SIGNING = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CONFIG = f"""
[[keys]]
name = "web"
sha256 = "{digest_of(KEY)}"
rights = ["inference"]
requests_per_second = 1
[roles.caller]
rights = ["inference", "metadata"]
[roles.operator]
rights = ["all"]
[[issuers]]
issuer = "{ISSUER}"
audience = "nereid"
algorithms = ["ES256"]
jwks_file = "keys.json"
roles_claim = "realm.roles"
"""


class Clock:
    """Shows what the test says."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Site:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "auth.toml"
        write_jwks(folder / "keys.json", SIGNING)
        self.path.write_text(CONFIG)
        self.clock = Clock(1000.0)
        self.epoch = Clock(time.time())
        self.authenticator = Authenticator(
            *load_config(str(self.path)), monotonic_s=self.clock, epoch_s=self.epoch
        )

    def apply(self, text: str) -> None:
        self.path.write_text(text)
        self.authenticator.apply(*load_config(str(self.path)))

    def bearer(self, text: str, peer: str = PEER) -> Principal:
        return self.authenticator.identify(Credentials(None, f"Bearer {text}", peer))

    def refusal(self, text: str, peer: str = PEER) -> CallRefused:
        with pytest.raises(CallRefused) as refused:
            self.bearer(text, peer)
        return refused.value


def write_jwks(path: Path, key: Any, kid: str = "one") -> None:
    algorithm = jwt.get_algorithm_by_name("ES256")
    document = json.loads(algorithm.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"}
    path.write_text(json.dumps({"keys": [document]}))


def token(key: Any = SIGNING, algorithm: str = "ES256", kid: str = "one", **changes: Any) -> str:
    claims = {
        "iss": ISSUER,
        "aud": "nereid",
        "sub": "alice",
        "exp": int(time.time()) + 600,
        "realm": {"roles": ["caller", "of-another-service"]},
    } | changes
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_key_in_either_header_is_the_same_principal(site: Site) -> None:
    first = site.bearer(KEY)
    assert first.name == "web"
    identify = site.authenticator.identify
    assert identify(Credentials(KEY, None, PEER)) is first
    # HTTP's headers are bytes.
    assert identify(Credentials(None, b"bearer  " + KEY.encode(), PEER)) is first
    assert identify(Credentials(KEY.encode(), b"Basic abc", PEER)) is first


@pytest.mark.parametrize(
    "text",
    ["", "x", KEY[:-1], KEY + "x", KEY.upper(), "\xff", "a.b.c", "é" * 100_000],
    # Keys are random, and all workers must name their tests alike.
    ids=["empty", "short", "cut", "longer", "upper", "no_utf8", "token", "long"],
)
def test_other_keys_are_not_accepted(site: Site, text: str) -> None:
    assert site.refusal(text).refusal.reason is Reason.INVALID_CREDENTIALS


def test_other_schemes_and_no_credentials(site: Site) -> None:
    identify = site.authenticator.identify
    for authorization, reason in (
        (f"Basic {KEY}", Reason.INVALID_CREDENTIALS),
        (KEY, Reason.INVALID_CREDENTIALS),
        (None, Reason.NO_CREDENTIALS),
    ):
        with pytest.raises(CallRefused) as refused:
            identify(Credentials(None, authorization, PEER))
        assert refused.value.refusal.reason is reason


def test_credentials_of_one_header_are_none_in_the_other(site: Site) -> None:
    """Also once they are remembered."""
    identify = site.authenticator.identify
    bearer = f"Bearer {KEY}"
    assert identify(Credentials(KEY, None, PEER)) is identify(Credentials(None, bearer, PEER))
    for api_key, authorization in ((None, KEY), (bearer, None)):
        with pytest.raises(CallRefused):
            identify(Credentials(api_key, authorization, PEER))


def test_a_refusal_never_repeats_the_credentials(site: Site) -> None:
    for text in (OTHER, token(kid="two"), token(sub="secret-name", aud="x")):
        refused = site.refusal(text)
        assert text not in refused.detail + refused.refusal.message


def test_anonymous_calls_have_the_rights_that_are_given_to_everybody(site: Site) -> None:
    site.apply('[anonymous]\nrights = ["health"]\n' + CONFIG)
    anonymous = site.authenticator.identify(Credentials(None, None, PEER))
    assert anonymous.check_rights("health") is None
    assert anonymous.check_rights("inference") is not None
    assert site.bearer(KEY).check_rights("health") is None
    # Credentials that are wrong are worse than none.
    assert site.refusal(OTHER).refusal.reason is Reason.INVALID_CREDENTIALS


def test_a_token_has_the_rights_of_its_roles(site: Site) -> None:
    principal = site.bearer(token())
    assert principal.name == "alice"
    assert principal.check_rights("inference", "any") is None
    refused = principal.check_rights("trace")
    assert refused is not None
    assert refused.reason is Reason.NOT_PERMITTED
    assert site.bearer(token(realm={"roles": "operator x"})).check_rights("trace") is None
    assert site.bearer(token(realm=None)).check_rights("inference") is not None
    assert site.bearer(token(sub=None, client_id="robot")).name == "robot"


def test_tokens_of_one_subject_share_limits_but_no_rights(site: Site) -> None:
    caller, operator = site.bearer(token()), site.bearer(token(realm={"roles": ["operator"]}))
    assert site.bearer(token(jti="2")) is caller
    assert caller is not operator
    assert caller.check_rights("trace") is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: token(key=ec.generate_private_key(ec.SECP256R1())),
        lambda: token(key=RSA, algorithm="RS256"),
        lambda: token(key="x" * 32, algorithm="HS256"),
        lambda: token(iss="https://evil.example.com/"),
        lambda: token(iss=None),
        lambda: token(aud="another"),
        lambda: token(aud=None),
        lambda: token(exp=None),
        lambda: token(exp=10**400),
        lambda: token(nbf=9_999_999_999),
        lambda: token(kid="two"),
        lambda: token()[:-2],
        lambda: token() + "A" * 20_000,
        lambda: "..",
        lambda: ".".join((part("{}"), part("[" * 5000), "")),
        lambda: ".".join((part("{}"), part('{"iss":' + "1" * 9000 + "}"), "x")),
        lambda: ".".join((*unsigned(), "")),
    ],
)
def test_tokens_that_are_not_accepted(site: Site, make: Callable[[], str]) -> None:
    assert site.refusal(make()).refusal.reason is Reason.INVALID_CREDENTIALS


def part(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unsigned() -> tuple[str, str]:
    """A token that says that it needs no signature."""
    claims = token().split(".")[1]
    return part('{"alg":"none","typ":"JWT"}'), claims


def test_an_expired_token_is_said_to_be(site: Site) -> None:
    assert "expired" in site.refusal(token(exp=1_700_000_000)).refusal.message


def test_a_remembered_token_expires_as_well(site: Site) -> None:
    text = token(exp=int(time.time()) + 60)
    principal = site.bearer(text)
    # Nothing from this address is verified any more.
    bad = token(key=ec.generate_private_key(ec.SECP256R1()))
    while site.refusal(bad).refusal.reason is not Reason.ATTEMPTS:
        pass
    site.epoch.now += 80  # its leeway is 30 s
    assert site.bearer(text) is principal
    site.epoch.now += 20
    assert site.refusal(text).refusal.reason is Reason.ATTEMPTS


def test_invalid_tokens_of_one_address_are_verified_only_so_often(site: Site) -> None:
    bad = token(key=ec.generate_private_key(ec.SECP256R1()))
    reasons = [site.refusal(bad, f"10.0.0.1:{port}").refusal.reason for port in range(150)]
    assert reasons[:100] == [Reason.INVALID_CREDENTIALS] * 100
    assert reasons[100:] == [Reason.ATTEMPTS] * 50
    # Neither other addresses nor keys are affected, nor tokens that were accepted before.
    assert site.bearer(token(), "10.0.0.2:1").name == "alice"
    assert site.bearer(KEY).name == "web"
    site.clock.now += 1
    good = token()
    assert site.bearer(good).name == "alice"


def test_valid_tokens_do_not_count_as_attempts(site: Site) -> None:
    assert len({site.bearer(token(jti=str(number))) for number in range(150)}) == 1


def test_what_is_remembered_is_bounded(site: Site) -> None:
    for number in range(20):
        site.bearer(token(sub=f"user{number}"))
        site.refusal(make_key())
    assert len(site.authenticator._by_authorization) == 20


def test_a_new_configuration_keeps_usage_and_ends_what_is_withdrawn(site: Site) -> None:
    web, alice = site.bearer(KEY), site.bearer(token())
    assert web.check_limits(1.0) is None
    web.usage.in_flight += 1
    site.apply(CONFIG.replace('["inference"]', '["trace"]').replace('"metadata"', '"logging"'))
    assert site.bearer(KEY) is web
    assert web.check_rights("inference") is not None
    assert web.check_rights("trace") is None
    assert web.usage.in_flight == 1
    assert web.check_limits(1.0) is not None
    assert alice.check_rights("logging") is None
    assert alice.check_rights("metadata") is not None

    site.apply(CONFIG.replace(digest_of(KEY), digest_of(OTHER)).replace('"web"', '"new"'))
    assert site.refusal(KEY).refusal.reason is Reason.INVALID_CREDENTIALS
    # A stream that it opened before has no rights any more.
    assert web.check_rights("trace") is not None

    site.apply(CONFIG.replace(ISSUER, "https://other/"))
    assert alice.check_rights("logging") is not None
    assert site.refusal(token()).refusal.reason is Reason.INVALID_CREDENTIALS


def test_keys_of_issuers_that_cannot_be_used(tmp_path: Path) -> None:
    def error(text: str, name: str = "keys.json", **files: str | bytes) -> str:
        for suffix, content in files.items():
            raw = content.encode() if isinstance(content, str) else content
            (tmp_path / f"keys.{suffix}").write_bytes(raw)
        with pytest.raises(AuthConfigError) as failure:
            TokenVerifier(parse_config(tomllib.loads(text), tmp_path).issuers)
        return failure.value.errors[0]

    assert "No such file" in error(CONFIG)
    assert "issuer 'https://login" in error(CONFIG, json="{}")
    assert "issuer 'https://login" in error(CONFIG, json="no JSON")
    octets = {"keys": [{"kty": "oct", "k": part("x" * 32), "kid": "one"}]}
    assert "a secret belongs in secret_file" in error(CONFIG, json=json.dumps(octets))
    pem = CONFIG.replace('jwks_file = "keys.json"', 'public_key_file = "keys.pem"')
    assert "keys.pem" in error(pem, pem=b"no PEM")
    rsa_key = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert "keys.pem" in error(pem, pem=rsa_key)  # is no key for ES256
    secret = pem.replace("public_key_file", "secret_file").replace("ES256", "HS256")
    assert "at least 32 bytes" in error(secret, pem=b"short")


def test_public_key_files_and_secrets(site: Site, tmp_path: Path) -> None:
    pem = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "keys.pem").write_bytes(pem)
    text = CONFIG.replace('jwks_file = "keys.json"', 'public_key_file = "keys.pem"')
    site.apply(text.replace("ES256", "RS256"))
    assert site.bearer(token(key=RSA, algorithm="RS256")).name == "alice"
    # Signed with the public key as if it were a secret.
    forged = ".".join((part('{"alg":"HS256","typ":"JWT"}'), token().split(".")[1]))
    signature = hmac.digest(forged.encode(), pem, "sha256")
    forged += "." + base64.urlsafe_b64encode(signature).decode().rstrip("=")
    assert site.refusal(forged).refusal.reason is Reason.INVALID_CREDENTIALS

    (tmp_path / "keys.txt").write_text("s" * 40 + "\n")
    text = CONFIG.replace('jwks_file = "keys.json"', 'secret_file = "keys.txt"')
    site.apply(text.replace("ES256", "HS256"))
    assert site.bearer(token(key="s" * 40, algorithm="HS256")).name == "alice"
    assert site.refusal(token(key="t" * 40, algorithm="HS256")) is not None
