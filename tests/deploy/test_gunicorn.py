"""Under gunicorn: one worker serves, more are refused."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
from harness import KEY, chat_body, events, eventually, script

ROOT = Path(__file__).parents[2]


def gunicorn(log: Path, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"MULGIL_ENGINE": "simulated", "MULGIL_API_KEYS": KEY, "MULGIL_PORT": "0"} | variables
    command = [sys.executable, "-m", "gunicorn", "-c", str(ROOT / "deploy/gunicorn.conf.py"), *arguments]
    with log.open("wb") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)


async def test_one_worker_serves_and_ends_cleanly(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = gunicorn(log)
    try:
        await eventually(lambda: "Listening at: http://127.0.0.1:" in log.read_text(), within=15)
        port = int(log.read_text().partition("Listening at: http://127.0.0.1:")[2].split()[0])
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            reply = await client.post(
                "/v1/chat/completions",
                json=chat_body() | {"model": "simulated"},
                headers={"authorization": f"Bearer {KEY}"},
            )
        assert reply.status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0


async def test_a_worker_has_the_bounds_and_the_orderly_end_of_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = gunicorn(log, MULGIL_REQUEST_TIMEOUT="0.3", MULGIL_SHUTDOWN_GRACE="1")
    try:
        await eventually(lambda: "Listening at: http://127.0.0.1:" in log.read_text(), within=15)
        port = int(log.read_text().partition("Listening at: http://127.0.0.1:")[2].split()[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 408 ")
        writer.close()
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=20) as client:
            body = chat_body(script(tokens=5_000, gap=0.02), stream=True) | {"model": "simulated"}
            asked = asyncio.create_task(client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body))
            await asyncio.sleep(1)
            process.send_signal(signal.SIGTERM)
            assert events((await asked).text)[-1]["error"]["code"] == "server_shutting_down"
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0


async def test_several_workers_are_refused_with_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = gunicorn(log, "-w", "2")
    assert await asyncio.to_thread(process.wait, 20) != 0
    assert "2 workers would load the weights 2 times" in log.read_text()
