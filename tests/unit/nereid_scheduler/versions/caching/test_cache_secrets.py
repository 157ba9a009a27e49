"""Which schedulers share secrets, and what the keys give away."""

from nereid_scheduler.versions.caching.cache_secrets import cache_secrets, cache_seed


def test_schedulers_with_one_token_share_their_secrets() -> None:
    assert cache_secrets(cache_seed(b"token")) == cache_secrets(cache_seed(b"token"))
    assert cache_secrets(cache_seed(b"token")) != cache_secrets(cache_seed(b"another"))


def test_without_a_token_each_has_its_own() -> None:
    assert cache_secrets(cache_seed(b"")) != cache_secrets(cache_seed(b""))


def test_each_purpose_has_a_key_of_its_own() -> None:
    seed = cache_seed(b"token")
    them = cache_secrets(seed)
    keys = {seed, b"token", them.request_key, them.name_key, them.value_key}
    assert len(keys) == 5
    assert {len(key) for key in keys - {b"token"}} == {32}


def test_no_key_is_shown() -> None:
    them = cache_secrets(cache_seed(b"token"))
    assert repr(them.value_key) not in repr(them)
