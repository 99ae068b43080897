"""`Cache-Control` of a request."""

import pytest

from mulgil.cache.control import ANY, CacheControl, cache_control


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", ANY),
        ("no-transform, only-if-cached", ANY),
        ("no-store", CacheControl(store=False)),
        ("No-Store", CacheControl(store=False)),
        ("no-cache", CacheControl(max_age=0)),
        ("max-age=60", CacheControl(max_age=60)),
        ('max-age="60"', CacheControl(max_age=60)),
        (" max-age = 60 , no-transform", CacheControl(max_age=60)),
        ("max-age=60, max-age=5", CacheControl(max_age=5)),
        ("max-age=60, no-cache", CacheControl(max_age=0)),
        ("no-store, max-age=60", CacheControl(store=False, max_age=60)),
        ("max-age=soon", CacheControl(max_age=0)),
        ("max-age=-1", CacheControl(max_age=0)),
        ("max-age", CacheControl(max_age=0)),
        ("max-age=٣", CacheControl(max_age=0)),
        ("max-age=" + "9" * 5_000, CacheControl(max_age=999_999_999_999)),
    ],
)
def test_directives_are_read_as_the_standard_has_them(header: str, wanted: CacheControl) -> None:
    assert cache_control(header) == wanted


def test_an_answer_is_taken_up_to_its_age_and_not_beyond() -> None:
    assert ANY.takes(1e9)
    assert CacheControl(max_age=60).takes(60)
    assert not CacheControl(max_age=60).takes(60.001)
    assert not CacheControl(max_age=0).takes(0)
    assert not CacheControl(store=False).takes(0)
