"""Log lines: one for each request, with what is to be known of it, and nothing that could be taken for another line."""

import io
import json
import logging
import logging.config
import re
from collections.abc import Generator
from typing import Any

import orjson
import pytest
from harness import KEY, MODEL, Server, chat_body, eventually, hanging_up, raw_request, script, serving, settings
from raw import ask, request_line

from mulgil.auth.keys import new_key
from mulgil.auth.source import StaticKeys
from mulgil.telemetry import logs
from mulgil.telemetry.access import AccessLog
from mulgil.telemetry.logs import Style
from mulgil.telemetry.names import ACCESS_FIELDS, LINE_FIELDS
from mulgil.telemetry.observation import Observation

NASTY = 'a\nb\r\nc\x1b[2J\x00\x7f\x85\u2028\u202e{"x":1} status=200 \ud800 가'
FORGED = "2026-11-30T00:00:00.000Z info    mulgil.telemetry.access: GET / 200"


@pytest.fixture
def root() -> Generator[None]:
    """The root logger is put back as it was."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:], logger.level = handlers, level


def written(style: Style, *, fields: dict[str, Any] | None = None, error: Exception | None = None) -> str:
    """What a line of NASTY things looks like."""
    extra = {"fields": fields} if fields else {"request_id": NASTY, "color_message": "no"}
    record = logging.getLogger().makeRecord(
        f"some.{NASTY}" if fields is None else "some", logging.INFO, "f", 1, NASTY, (), None, extra=extra
    )
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    return logs.formatter(style).format(record)


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("fields", [None, {"path": NASTY, "model": NASTY}])
def test_no_text_can_begin_a_line_or_move_a_cursor(style: Style, fields: dict[str, Any] | None) -> None:
    line = written(style, fields=fields)
    assert line.isprintable()
    assert "가" in line or "\\uac00" in line
    if style == "json":
        told = json.loads(line)
        assert told["event"] == NASTY
        assert told["request_id" if fields is None else "path"] == NASTY
    else:
        assert not re.search(r" status=200", line.replace("\\n", "").partition("path=")[2].partition('"')[0])


@pytest.mark.parametrize("style", ["json", "console"])
def test_nor_can_the_message_of_an_error(style: Style) -> None:
    text = written(style, error=ValueError(f"no\n{FORGED}\r{FORGED}\x1b[2J"))
    first, *rest = text.split("\n")
    assert FORGED not in (first, *rest)
    assert all(line.startswith("    ") for line in rest)
    assert all(line.isprintable() for line in (first, *rest))
    assert "ValueError" in text
    assert (not rest) == (style == "json")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("style", ["json", "console"])
def test_all_loggers_write_in_one_format_from_the_level_up(style: Style) -> None:
    stream = io.StringIO()
    logs.configure("warning", style, stream)
    logging.getLogger("uvicorn.error").warning("of %s", "uvicorn")
    logging.getLogger("mulgil.gateway").error("of ours", extra={"request_id": "req_1"})
    logging.getLogger("httpx").info("not told")
    first, second = stream.getvalue().splitlines()
    if style == "json":
        told = orjson.loads(first)
        assert told.keys() <= {*LINE_FIELDS, *ACCESS_FIELDS}
        assert (told["level"], told["logger"], told["event"]) == ("warning", "uvicorn.error", "of uvicorn")
        assert orjson.loads(second)["request_id"] == "req_1"
    else:
        assert re.fullmatch(r"\S+Z warning uvicorn\.error: of uvicorn", first)
        assert re.fullmatch(r"\S+Z error   mulgil\.gateway: of ours request_id=req_1", second)


@pytest.mark.usefixtures("root")
def test_what_vllm_says_of_our_own_process_is_left_out() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    record = logging.makeLogRecord({"name": "mulgil", "levelno": logging.INFO, "levelname": "INFO", "msg": "ours"})
    record.vllm_process_name = "MainProcess"
    logging.getLogger("mulgil").handle(record)
    assert orjson.loads(stream.getvalue()).keys() == {"timestamp", "level", "logger", "event"}


def test_vllm_is_told_to_write_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    vllm = logging.getLogger("vllm")
    before = list(vllm.handlers), vllm.level, vllm.propagate
    try:
        logging.config.dictConfig(json.loads(json.dumps(logs.configuration_of_vllm("info", "json"))))
        # Made by hand: vLLM, once it is imported, sets the name of every record itself.
        record = logging.makeLogRecord({"name": "vllm.v1.engine", "levelno": logging.INFO, "levelname": "INFO"})
        record.msg, record.vllm_process_name = "loaded", "EngineCore"
        logging.getLogger("vllm.v1.engine").handle(record)
    finally:
        vllm.handlers[:], vllm.level, vllm.propagate = before
    told = orjson.loads(capfd.readouterr().err)
    assert (told["event"], told["process"], told["logger"]) == ("loaded", "EngineCore", "vllm.v1.engine")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [fields for record in caplog.records if (fields := getattr(record, "fields", None))]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "mulgil.telemetry.access")
    return caplog


async def test_a_stream_has_one_line_with_all_that_is_to_be_known(
    server: Server, lines: pytest.LogCaptureFixture
) -> None:
    headers = {"x-stainless-retry-count": "2", "x-request-id": "mine-1"}
    body = chat_body(script("a prompt for nobody else", tokens=7, ttft=0.02), stream=True)
    answer = await server.client.post("/v1/chat/completions", json=body, headers=headers)
    (line,) = lines_of(lines)
    assert line.keys() <= set(ACCESS_FIELDS)
    assert {name: line[name] for name in line.keys() & told_exactly.keys()} == told_exactly
    assert line["request_id"] == answer.headers["x-request-id"]
    assert 20 <= line["ttft_ms"] <= line["duration_ms"]
    assert line["prompt_tokens"] > 0
    assert "a prompt" not in str(line)
    assert KEY not in str(line)


told_exactly = {
    "client_request_id": "mine-1",
    "method": "POST",
    "path": "/v1/chat/completions",
    "route": "/v1/chat/completions",
    "status": 200,
    "tenant": "default",
    "tier": "default",
    "model": MODEL,
    "cached_tokens": 0,
    "completion_tokens": 7,
    "finish": "stop",
    "retry_count": 2,
}


async def test_one_that_is_hung_up_has_one_line_when_it_is_settled(
    server: Server, lines: pytest.LogCaptureFixture
) -> None:
    body = orjson.dumps(chat_body(script(tokens=1_000, gap=0.01), stream=True))
    async with hanging_up(server, raw_request(body)) as reader:
        await reader.readuntil(b'content":"')
        assert lines_of(lines) == []
    await eventually(lambda: bool(lines_of(lines)))
    (line,) = lines_of(lines)
    assert (line["hung_up"], line["finish"], line["status"]) == (True, "abort", 200)
    assert 0 < line["completion_tokens"] < 1_000


async def test_one_that_leaves_before_it_has_a_status_gets_nginx_s(
    server: Server, lines: pytest.LogCaptureFixture
) -> None:
    async with hanging_up(server, raw_request(orjson.dumps(chat_body(script(hang_at=0))))):
        await eventually(lambda: server.mulgil.gateway.running == 1)
    await eventually(lambda: bool(lines_of(lines)))
    (line,) = lines_of(lines)
    assert (line["hung_up"], line["status"]) == (True, 499)


async def test_a_kept_stream_has_its_line_when_it_ends_and_its_reader_one_of_its_own(
    server: Server, lines: pytest.LogCaptureFixture
) -> None:
    told = (await server.client.post("/v1/streams", json=chat_body(script(tokens=5, gap=0.01)))).json()
    assert lines_of(lines) == []
    await server.client.get(told["url"])
    await eventually(lambda: len(lines_of(lines)) == 2)
    by_route = {line["route"]: line for line in lines_of(lines)}
    assert (by_route["/v1/streams"]["status"], by_route["/v1/streams"]["completion_tokens"]) == (201, 5)
    assert "completion_tokens" not in by_route["/v1/streams/{stream_id}"]


async def test_a_refusal_says_why(server: Server, lines: pytest.LogCaptureFixture) -> None:
    await server.chat(temperature=9)
    await server.client.get("/v1/nothing")
    await server.chat(script(tokens=3, fail_at=2), stream=True)
    invalid, unknown, failed = lines_of(lines)
    assert (invalid["status"], invalid["error"]) == (422, "decimal_above_max_value")
    assert (unknown["status"], unknown["error"], "route" in unknown) == (404, "unknown_url", False)
    assert (failed["status"], failed["error"], failed["finish"]) == (200, "engine_error", "error")


async def test_probes_have_no_line_at_the_usual_level(server: Server, lines: pytest.LogCaptureFixture) -> None:
    for path in ("/health", "/health/ready", "/health/live"):
        await server.client.get(path)
    assert lines_of(lines) == []


async def test_a_path_is_cut_and_what_is_in_it_is_escaped(server: Server, lines: pytest.LogCaptureFixture) -> None:
    await ask(server, request_line("GET", "/v1/%0Aforged%1b[2J" + "x" * 1_000))
    (record,) = [record for record in lines.records if getattr(record, "fields", None)]
    for style in ("json", "console"):
        line = logs.formatter(style).format(record)
        assert line.isprintable()
        assert len(line) < 1_500


def of_id(number: int, **changes: Any) -> Observation:
    observed = Observation(id=f"req_{number:032x}", status=200)
    observed.begin("authenticate")
    for name, value in changes.items():
        setattr(observed, name, value)
    return observed


def test_of_the_requests_that_went_well_a_share_has_a_line_and_the_others_all(lines: pytest.LogCaptureFixture) -> None:
    access = AccessLog(0.25)
    for number in range(2_000):
        access.write(of_id(number))
    chosen = {line["request_id"] for line in lines_of(lines)}
    assert 400 < len(chosen) < 600
    lines.clear()
    for number in range(2_000):
        access.write(of_id(number))
    assert {line["request_id"] for line in lines_of(lines)} == chosen
    lines.clear()
    for wrong in ({"status": 429}, {"hung_up": True}, {"error": "engine_error"}):
        for number in range(20):
            access.write(of_id(number, **wrong))
    assert len(lines_of(lines)) == 60


def test_a_variant_and_a_fallback_are_named_where_there_are_some(lines: pytest.LogCaptureFixture) -> None:
    access, replaced = AccessLog(), of_id(3, variant="terse")
    replaced.falls_back("elsewhere", "overloaded")
    for observed in (of_id(1), of_id(2, variant="terse"), replaced):
        access.write(observed)
    names = ("variant", "fallback", "fallback_reason")
    assert [{name: line[name] for name in names if name in line} for line in lines_of(lines)] == [
        {},
        {"variant": "terse"},
        {"variant": "terse", "fallback": "elsewhere", "fallback_reason": "overloaded"},
    ]
    assert set(names) <= set(ACCESS_FIELDS)


async def test_no_share_at_all_leaves_those_that_went_wrong(lines: pytest.LogCaptureFixture) -> None:
    async with serving(settings(access_log_share=0.0)) as server:
        await server.chat()
        await server.chat(temperature=9)
    assert [line["status"] for line in lines_of(lines)] == [422]


@pytest.mark.parametrize("sent", ["-1", "1e3", "x", "1234", "1\t2", ""])
async def test_a_retry_count_that_is_none_is_left_out(
    shared: Server, lines: pytest.LogCaptureFixture, sent: str
) -> None:
    await shared.client.get("/v1/models", headers={"x-stainless-retry-count": sent})
    assert "retry_count" not in lines_of(lines)[-1]


async def test_of_a_key_that_somebody_thought_up_no_beginning_is_told() -> None:
    ours = new_key()
    keys = StaticKeys([ours, "hunter2-hunter2"])
    found = [await keys.find(key.encode()) for key in (ours, "hunter2-hunter2")]
    assert [caller.prefix for caller in found if caller] == [ours[:10], ""]
