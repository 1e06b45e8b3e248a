"""Data URIs: exact bytes out, everything else refused by name, nothing decoded beyond the budget."""

from __future__ import annotations

import base64
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.faults import Refused
from ninfer.media import sources
from ninfer.media.sources import Purse, is_data_uri, read_data_uri, weigh_data_uri

WHERE = "messages[0].content[1].image_url.url"


def code(uri: str, limit: int = 1 << 20) -> str | None:
    with pytest.raises(Refused) as caught:
        read_data_uri(uri, WHERE, limit)
    assert caught.value.fault.param == WHERE
    return caught.value.fault.code


@given(st.binary(min_size=1, max_size=200), st.sampled_from(["", "image/png", "image/png;charset=x"]))
def test_what_was_encoded_comes_back(data: bytes, kind: str) -> None:
    text = base64.b64encode(data).decode()
    assert read_data_uri(f"data:{kind};base64,{text}", WHERE, 1000) == data
    assert (
        read_data_uri(f"DATA:{kind};BASE64,{text.replace('+', '%2B').replace('=', '%3d')}", WHERE, 1000)
        == data
    )


@pytest.mark.parametrize("size", [1, 2, 3, sources.STEP * 3 // 4, sources.STEP * 3 // 4 + 1, sources.STEP])
def test_steps_leave_no_seam(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    uri = "data:;base64," + base64.b64encode(data[:size]).decode()
    assert read_data_uri(uri, WHERE, 1 << 24) == data[:size]


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "data:image/png;base64,@@@",
            "data:image/png,abc",
            "data:image/png;base64,",
            "data:",
            "data:;base64",
        ),
        *("data:;base64,QUJ", "data:;base64,QUJD=", "data:;base64,QUI=QUJD", "data:;base64,QU JD"),
        *("data:;base64,QUJD\n", "data:;base64,QUJDé", "data:;base64,QUJD\ud800", "data:;base64,%ff%fe"),
        *(
            "data:;base64,-_-_",
            "data:;base64,====",
            "data:;base64,QUJD%2",
            "data:" + "x" * 2000 + ";base64,QUJD",
        ),
        "data:;base64," + "A" * (sources.STEP - 4) + "QQ==" + "QUJD",
        "data:;base64," + "%41" * sources.STEP,
    ],
    ids=range(19),
)
def test_malformed_uris_are_invalid_and_name_their_part(uri: str) -> None:
    assert code(uri, 1 << 24) == "invalid_media"


@given(st.text(max_size=60))
def test_junk_never_raises_anything_else(junk: str) -> None:
    try:
        assert read_data_uri("data:;base64," + junk, WHERE, 1000)
    except Refused as refused:
        assert refused.fault.code == "invalid_media"


def test_a_long_uri_is_refused_by_its_length() -> None:
    assert code("data:;base64," + "A" * 400, limit=100) == "media_budget_exceeded"
    with pytest.raises(Refused) as caught:
        weigh_data_uri("data:;base64," + "A" * 400, WHERE, Purse(100, 1000))
    assert caught.value.fault.code == "media_budget_exceeded"


def test_all_sources_of_a_request_have_one_purse() -> None:
    purse = Purse(1000, 650)
    weigh_data_uri("data:;base64," + "A" * 400, WHERE, purse)
    weigh_data_uri("data:;base64," + "A" * 400, WHERE, purse)
    with pytest.raises(Refused) as caught:
        weigh_data_uri("data:;base64," + "A" * 400, "messages[0].content[2]", purse)
    assert (caught.value.fault.code, caught.value.fault.param) == (
        "media_budget_exceeded",
        "messages[0].content[2]",
    )


def test_a_data_uri_is_told_by_its_scheme() -> None:
    assert is_data_uri("data:x") and is_data_uri("DaTa:x")
    assert not any(map(is_data_uri, ["http://data:1/", "", "dat", "/data:/a"]))


@pytest.mark.slow
def test_64_megabytes_never_hold_the_interpreter_for_long() -> None:
    """Measured from another thread, which is where the event loop stands."""
    uri = "data:;base64," + base64.b64encode(bytes(64 << 20)).decode()
    worker = threading.Thread(target=read_data_uri, args=(uri, WHERE, 64 << 20))
    worker.start()
    longest, last = 0.0, time.perf_counter()
    while worker.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < 0.05, longest
