"""A real nginx with the configuration that we ship, in front of real gateways."""

import asyncio
import itertools
import re
import shutil
import ssl
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from asgiservers import Answering, answering
from harness import KEY, Server, chat_body, events, eventually, script, serving, settings, text_of
from nginxserver import ROOT, Nginx, nginx, rendered
from websockets.asyncio.client import connect

from mulgil.settings import Settings

HEADERS = {"authorization": f"Bearer {KEY}"}
ENVELOPE = {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
async def front(shared: Server) -> AsyncGenerator[Nginx]:
    """An nginx in front of the shared gateway, for tests that leave it as they found it."""
    async with nginx(f"127.0.0.1:{shared.port}", NGINX_CORS_ORIGINS='"https://app.example" $http_origin;') as running:
        yield running


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(headers=HEADERS, timeout=30, limits=httpx2.Limits(max_connections=200)) as made:
        yield made


def error_in(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == ENVELOPE
    return error


async def arrivals(client: httpx2.AsyncClient, url: str, body: dict[str, Any]) -> list[float]:
    """When each read of a streamed chat brought something."""
    times = []
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        async for _ in answer.aiter_raw():
            times.append(time.perf_counter())
    return times


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


async def assert_tokens_arrive_one_by_one(client: httpx2.AsyncClient, url: str, direct_url: str) -> None:
    """Both ways at once, so that a busy machine is equally busy for both."""
    body = chat_body(script(tokens=40, gap=0.03), stream=True)
    through, direct = await asyncio.gather(arrivals(client, url, body), arrivals(client, direct_url, body))
    assert len(through) > 30
    assert statistics.median(gaps(through)) == pytest.approx(statistics.median(gaps(direct)), rel=0.2, abs=0.005)


async def test_tokens_arrive_one_by_one(shared: Server, front: Nginx, client: httpx2.AsyncClient) -> None:
    await assert_tokens_arrive_one_by_one(client, front.url, shared.url)


async def test_compression_that_is_on_around_our_configuration_gathers_no_stream(
    shared: Server, client: httpx2.AsyncClient
) -> None:
    async with nginx(
        f"127.0.0.1:{shared.port}", around="gzip on; gzip_min_length 1; gzip_proxied any; gzip_types text/event-stream;"
    ) as front:
        await assert_tokens_arrive_one_by_one(client, front.url, shared.url)


async def test_a_stream_through_it_says_what_a_direct_one_says(
    shared: Server, front: Nginx, client: httpx2.AsyncClient
) -> None:
    body = chat_body("물길은 흐른다", stream=True, seed=7)
    through = await client.post(f"{front.url}/v1/chat/completions", json=body)
    direct = await client.post(f"{shared.url}/v1/chat/completions", json=body)
    assert text_of(events(through.text)) == text_of(events(direct.text))
    assert events(through.text)[-1] == "[DONE]"
    expected = {"content-type", "cache-control", "x-request-id", "openai-processing-ms"}
    limits = {name for name in direct.headers if name.startswith("x-ratelimit-")}
    assert through.headers.keys() >= expected | limits


async def test_a_silence_shorter_than_its_time_outs_ends_nothing(client: httpx2.AsyncClient) -> None:
    # 90 s of it are tried by bench/silence.py, with the time-outs as we ship them.
    async with (
        serving(settings(ping_interval=60.0)) as server,
        nginx(f"127.0.0.1:{server.port}", NGINX_SILENCE="6s") as front,
    ):
        answer = await client.post(
            f"{front.url}/v1/chat/completions", json=chat_body(script(ttft=3, tokens=3), stream=True)
        )
    assert events(answer.text)[-1] == "[DONE]"


async def test_an_answer_that_comes_too_late_is_an_error_in_the_envelope(client: httpx2.AsyncClient) -> None:
    async with serving() as server, nginx(f"127.0.0.1:{server.port}", NGINX_SILENCE="1s") as front:
        answer = await client.post(f"{front.url}/v1/chat/completions", json=chat_body(script(ttft=20)))
        assert answer.status_code == 504
        assert error_in(answer)["type"] == "server_error"
        assert answer.headers["retry-after"] == "2"
        # nginx has hung up, so nothing goes on being generated.
        await eventually(lambda: server.engine.load().unfinished == 0)


async def test_the_engine_stops_when_a_client_of_the_proxy_hangs_up(server: Server, client: httpx2.AsyncClient) -> None:
    async with nginx(f"127.0.0.1:{server.port}") as front:
        body = chat_body(script(hang_at=3), stream=True)
        async with client.stream("POST", f"{front.url}/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_raw())
            assert server.engine.load().unfinished == 1
        await eventually(lambda: server.engine.load().unfinished == 0)


async def test_connection_21_of_one_address_gets_503_in_the_envelope(
    shared: Server, front: Nginx, client: httpx2.AsyncClient
) -> None:
    body = chat_body(script(hang_at=1), stream=True)
    async with AsyncExitStack() as streams:
        for _ in range(20):
            answer = await streams.enter_async_context(
                client.stream("POST", f"{front.url}/v1/chat/completions", json=body)
            )
            assert answer.status_code == 200
        refused = await client.post(
            f"{front.url}/v1/chat/completions", json=chat_body(), headers={"origin": "https://app.example"}
        )
        assert refused.status_code == 503
        error = error_in(refused)
        assert (error["type"], error["param"], error["code"]) == ("server_error", None, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["retry-after-ms"] == "1000"
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
    await eventually(lambda: shared.engine.load().unfinished == 0)
    assert (await client.post(f"{front.url}/v1/chat/completions", json=chat_body())).status_code == 200


async def test_a_body_that_is_too_large_is_refused_in_the_envelope_by_whoever_sees_it_first(
    front: Nginx, client: httpx2.AsyncClient
) -> None:
    most = Settings.model_fields["max_body_bytes"].default
    for size in (most, most + 1):
        answer = await client.post(
            f"{front.url}/v1/tokenize", content=b" " * size, headers={"content-type": "application/json"}
        )
        assert answer.status_code == (413 if size > most else 400)
        assert error_in(answer)["code"] == ("request_too_large" if size > most else "invalid_json")


async def test_what_is_no_http_is_refused_in_the_envelope(front: Nginx) -> None:
    for sent, status in (
        (b"GET /v1/models HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", b"431"),
        (b"TRACE /v1/models HTTP/1.1\r\nhost: a\r\n\r\n", b"400"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(sent)
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"].keys() == ENVELOPE


async def test_what_the_gateway_refuses_is_passed_on_as_it_is(front: Nginx, client: httpx2.AsyncClient) -> None:
    wrong_key = await client.post(
        f"{front.url}/v1/chat/completions", json=chat_body(), headers={"authorization": "Bearer wrong"}
    )
    assert wrong_key.status_code == 401
    assert error_in(wrong_key)["code"] == "invalid_api_key"
    assert wrong_key.headers["www-authenticate"] == "Bearer"
    nowhere = await client.get(f"{front.url}/v1/nowhere")
    assert error_in(nowhere)["code"] == "unknown_url"


async def test_where_no_gateway_is_there_is_an_error_in_the_envelope(client: httpx2.AsyncClient) -> None:
    async with nginx("127.0.0.1:9", "127.0.0.1:10") as front:
        answer = await client.post(f"{front.url}/v1/chat/completions", json=chat_body())
    assert answer.status_code == 502
    assert error_in(answer)["type"] == "server_error"
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["retry-after-ms"] == "2000"


@asynccontextmanager
async def gateway_process(folder: Path) -> AsyncGenerator[tuple[asyncio.subprocess.Process, int]]:
    """A gateway that can be killed, and its port."""
    process = await asyncio.create_subprocess_exec(
        *(str(ROOT / ".venv/bin/mulgil"), "quickstart", "--engine", "simulated", "--port", "0", "--api-keys", KEY),
        *("--model", "demo", "--config", str(ROOT / "tests/unlimited.toml")),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            while not (said := re.search(rb"http://127\.0\.0\.1:(\d+)/v1", await process.stdout.readline())):
                assert not process.stdout.at_eof()
        yield process, int(said[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask_again_and_again(client: httpx2.AsyncClient, url: str, until: asyncio.Event) -> list[tuple[float, bool]]:
    """When each request began, and whether its answer was whole; streamed and plain in turn."""
    outcomes: list[tuple[float, bool]] = []
    while not until.is_set():
        began, stream = time.monotonic(), len(outcomes) % 2 == 0
        body = chat_body(script(tokens=8, gap=0.005), stream=stream)
        try:
            headers = {"x-session-id": f"{began}"}
            answer = await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            whole = answer.status_code == 200 and (not stream or events(answer.text)[-1] == "[DONE]")
        except httpx2.HTTPError:
            whole = False
        outcomes.append((began, whole))
    return outcomes


async def test_killing_one_of_two_gateways_loses_no_new_request(tmp_path: Path, client: httpx2.AsyncClient) -> None:
    async with AsyncExitStack() as stack:
        dying, port = await stack.enter_async_context(gateway_process(tmp_path))
        _, other = await stack.enter_async_context(gateway_process(tmp_path))
        front = await stack.enter_async_context(nginx(f"127.0.0.1:{port}", f"127.0.0.1:{other}"))
        enough = asyncio.Event()
        asking = [asyncio.create_task(ask_again_and_again(client, front.url, enough)) for _ in range(8)]
        await asyncio.sleep(1)
        dying.kill()
        await dying.wait()
        killed = time.monotonic()
        await asyncio.sleep(3)
        enough.set()
        outcomes = [outcome for one in await asyncio.gather(*asking) for outcome in one]
    before = [whole for began, whole in outcomes if began < killed - 0.5]
    after = [whole for began, whole in outcomes if began > killed]
    assert len(before) > 10
    assert len(after) > 50
    assert all(before)
    assert all(after)


@pytest.fixture
async def two() -> AsyncGenerator[tuple[Answering, Answering]]:
    """Two servers that answer what they were asked."""
    async with answering("a") as first, answering("b") as second:
        yield first, second


async def test_a_session_stays_with_its_gateway_and_moves_when_that_is_away(
    two: tuple[Answering, Answering], client: httpx2.AsyncClient
) -> None:
    async with nginx(*(one.address for one in two)) as front:

        async def who(**headers: str) -> str:
            told: str = (await client.get(front.url, headers=headers)).json()["name"]
            return told

        homes = {session: await who(**{"x-session-id": session}) for session in map(str, range(20))}
        assert set(homes.values()) == {"a", "b"}
        assert homes == {session: await who(**{"x-session-id": session}) for session in homes}
        by_key = {await who(authorization="Bearer one") for _ in range(10)}
        assert len(by_key) == 1
        two[0].status = 503
        assert {await who(**{"x-session-id": session}) for session in homes} == {"b"}
        two[0].status = 200
        assert homes == {session: await who(**{"x-session-id": session}) for session in homes}


async def test_when_every_gateway_is_full_their_own_words_are_passed_on_every_time(
    two: tuple[Answering, Answering], client: httpx2.AsyncClient
) -> None:
    two[0].status = two[1].status = 503
    async with nginx(*(one.address for one in two)) as front:
        answers = [await client.post(front.url, json={}) for _ in range(12)]
        assert {(answer.status_code, answer.json()["name"]) for answer in answers} <= {(503, "a"), (503, "b")}
        two[1].status = 200
        assert (await client.post(front.url, json={})).json()["name"] == "b"


async def test_a_kept_stream_is_found_wherever_it_is(client: httpx2.AsyncClient) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving()) for _ in range(2)]
        front = await stack.enter_async_context(nginx(*(f"127.0.0.1:{server.port}" for server in servers)))
        for session in range(6):
            headers = {"x-session-id": str(session)}
            made = await client.post(f"{front.url}/v1/streams", json=chat_body(script(tokens=3)), headers=headers)
            assert made.status_code == 201
            read = await client.get(f"{front.url}/v1/streams/{made.json()['id']}")  # without its session
            assert read.status_code == 200


@pytest.mark.parametrize("path", ["/v1/streams/s", "/stream", "/ws/chat"])
@pytest.mark.parametrize("status", [403, 404])
async def test_a_gateway_that_knows_nothing_of_a_ticket_is_not_the_last_one_asked(
    two: tuple[Answering, Answering], client: httpx2.AsyncClient, path: str, status: int
) -> None:
    two[0].status = status
    async with nginx(*(one.address for one in two)) as front:
        for session in range(6):
            found = await client.get(f"{front.url}{path}?ticket=t", headers={"x-session-id": str(session)})
            assert (found.status_code, found.json()["name"]) == (200, "b")
            elsewhere = await client.get(f"{front.url}/v1/models/s", headers={"x-session-id": str(session)})
            assert elsewhere.status_code == (200 if elsewhere.json()["name"] == "b" else status)


async def test_the_gateway_hears_who_called_and_how(
    two: tuple[Answering, Answering], client: httpx2.AsyncClient
) -> None:
    async with nginx(two[0].address) as front:
        claimed = {"x-forwarded-for": "6.6.6.6", "x-request-id": "mine-1", "upgrade": "h2c", "connection": "upgrade"}
        heard = (await client.get(front.url, headers=claimed)).json()["headers"]
        assert heard["x-forwarded-for"] == "127.0.0.1"
        assert heard["x-forwarded-proto"] == "http"
        assert heard["host"] == f"127.0.0.1:{front.port}"
        assert heard["x-request-id"] == "mine-1"
        assert heard["authorization"] == HEADERS["authorization"]
        assert not heard.keys() & {"upgrade", "connection"}
        unnamed = (await client.get(front.url, headers={"x-request-id": "not loggable\ta"})).json()["headers"]
        assert re.fullmatch(r"req_[0-9a-f]{32}", unnamed["x-request-id"])


async def test_no_ticket_and_no_key_is_in_a_log(two: tuple[Answering, Answering], client: httpx2.AsyncClient) -> None:
    secret = "tk-very-secret"
    for upstream in (two[0].address, "127.0.0.1:9"):
        async with nginx(upstream) as front:
            for path in ("/stream", "/v1/streams/s", "/ws/chat", "/anything"):
                ticketed = path != "/anything"
                await client.get(front.url + path, params={"ticket": secret} if ticketed else {})
            await eventually(lambda: "/anything" in front.logged)
            assert secret not in front.logged
            assert KEY not in front.logged


async def test_a_websocket_passes_in_both_directions(two: tuple[Answering, Answering]) -> None:
    async with (
        nginx(two[0].address) as front,
        connect(f"ws://127.0.0.1:{front.port}/ws/chat?ticket=t", additional_headers=HEADERS, proxy=None) as socket,
    ):
        for text in ("one", "물길", "x" * 100_000):
            await socket.send(text)
            assert await socket.recv() == f"a: {text}"


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificate with openssl: install it to run this"
)
async def test_it_serves_tls_and_tells_the_gateway(two: tuple[Answering, Answering], tmp_path: Path) -> None:
    made = await asyncio.create_subprocess_exec(
        *"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split(),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"),
        cwd=tmp_path,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    tls = f"ssl_certificate {tmp_path}/cert.pem; ssl_certificate_key {tmp_path}/key.pem; http2 on;"
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with (
        nginx(two[0].address, NGINX_LISTEN="127.0.0.1:PORT ssl", NGINX_TLS=tls) as front,
        httpx2.AsyncClient(verify=context) as client,
    ):
        heard = (await client.get(f"https://127.0.0.1:{front.port}/")).json()["headers"]
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection("127.0.0.1", front.port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()
    assert heard["x-forwarded-proto"] == "https"


def test_what_both_sides_must_agree_on_is_the_same_on_both_sides() -> None:
    config = rendered("127.0.0.1:8000")
    assert f"client_max_body_size {Settings.model_fields['max_body_bytes'].default};" in config
    assert f"send_timeout {Settings.model_fields['write_timeout'].default:g}s;" in config
    kept = re.search(r"keepalive_timeout (\d+)s;", config)
    assert kept is not None
    assert int(kept[1]) < Settings.model_fields["keep_alive"].default
    assert "${" not in config.partition("\n\n")[2]
