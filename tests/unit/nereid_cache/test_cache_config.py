"""--cache-config in Triton's form, and what is wrong with it."""

from pathlib import Path

import pytest

from nereid_cache.cache_config import (
    PASSWORD_VARIABLE,
    LocalConfig,
    RedisConfig,
    checked_option,
    parse_cache_config,
)


def test_the_store_in_memory_is_the_default() -> None:
    assert parse_cache_config((), {}) == LocalConfig()


def test_options_come_in_one_flag_or_in_several() -> None:
    expected = LocalConfig(size=1048576, ttl=1.5)
    assert parse_cache_config(["local,size=1048576,ttl=1.5"], {}) == expected
    assert parse_cache_config(["local,size=1048576", "local,ttl=1.5"], {}) == expected


def test_every_option_of_redis(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    text = (
        "redis,host=h,port=1,user=u,password=p=1,db=2,connect_timeout=3,socket_timeout=4,"
        f"pool_size=5,wait_timeout=6,tls_enabled=true,cacert={ca},sni=s,ttl=7,namespace=n"
    )
    assert parse_cache_config([text], {}) == RedisConfig(
        host="h", port=1, user="u", password="p=1", db=2, connect_timeout=3, socket_timeout=4,
        pool_size=5, wait_timeout=6, tls_enabled=True, tls_cacert=str(ca), tls_sni="s", ttl=7,
        namespace="n",
    )  # fmt: skip
    # Nereid's own names say what they are about.
    assert parse_cache_config([text.replace("cacert=", "tls_cacert=")], {}) == parse_cache_config(
        [text], {}
    )


def test_credentials_come_from_the_environment_unless_they_are_written() -> None:
    environ = {"TRITONCACHE_REDIS_USERNAME": "env", "TRITONCACHE_REDIS_PASSWORD": "secret"}
    config = parse_cache_config(["redis,host=h,user=mine"], environ)
    assert isinstance(config, RedisConfig)
    assert (config.user, config.password) == ("mine", "secret")
    assert "secret" not in repr(config)


def test_a_password_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("se,cr=et\nmore\n")
    text = f"redis,host=h,password_file={path}"
    assert parse_cache_config([text], {PASSWORD_VARIABLE: "b"}).password == "se,cr=et"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="password and password_file exclude each other"):
        parse_cache_config([text, "redis,password=x"], {})
    path.write_text("\nx")
    with pytest.raises(ValueError, match=r"password_file=.*: its first line is empty"):
        parse_cache_config([text], {})
    path.unlink()
    with pytest.raises(ValueError, match=r"password_file=.*: No such file"):
        parse_cache_config([text], {})


def test_the_addresses_of_a_url_may_be_several() -> None:
    url = "redis+sentinel://a:1,b:2/mymaster"
    config = parse_cache_config([f"redis,url={url},db=3"], {})
    assert isinstance(config, RedisConfig)
    assert (config.url, config.db) == (url, 3)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["local,size=0"], "at least 1"),
        (["local,host=h"], "no option 'host'"),
        (["local,size=1", "redis,host=h"], "only one cache"),
        (["redis,port=1"], "host or url is required"),
        (["redis,host=h,url=redis://h"], "exclude each other"),
        (["redis,url=http://h"], "url must begin"),
        (["redis,url=redis+many://h"], "url must begin"),
        (["redis,url=unix+cluster://h"], "url must begin"),
        (["redis,url=redis+sentinel://h"], "must name the service"),
        (["redis,host=h,tls_enabled=true,cert=/nowhere"], "'/nowhere' does not exist"),
        (["redis,host=h,sni=n"], "tls_sni: needs tls_enabled=true"),
        (["redis,url=redis://h,tls_enabled=true"], "begins with redis://, not rediss://"),
        (["redis,url=rediss+sentinel://h/s,sni=n"], "not for sentinels"),
        (
            ["redis,url=redis+cluster://h,sentinel_password=p"],
            "sentinel_password: needs a url of sentinels",
        ),
        (["redis,url=rediss+cluster://h,cacert_dir=/"], "takes tls_cacert"),
        (["local,key=1"], "no option 'key'"),
        (["redis,host=h,port=x"], "redis,port=x: expected a whole number"),
    ],
)
def test_bad_options_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_cache_config(texts, {})


def test_all_errors_are_reported_at_once_and_no_password() -> None:
    with pytest.raises(ValueError) as caught:
        parse_cache_config(["redis,db=-1,pool_size=0,password=geheim"], {})
    assert len(str(caught.value).splitlines()) == 3
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("text", ["disk,size=1", "local,1", "redis,=h"])
def test_the_form_of_one_option(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        checked_option(text)
    assert checked_option("local,size=1") == "local,size=1"
    assert checked_option("local") == "local"
