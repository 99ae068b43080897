"""The description of the API, and requests made up from it."""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from harness import KEY, MODEL, Server
from raw import ask, error_of, request_line

# Seconds of made-up requests.
FUZZING = 8


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


async def test_the_description_needs_a_key(shared: Server) -> None:
    answer = await ask(shared, request_line("GET", "/openapi.json"))
    assert answer.status_code == 401
    assert error_of(answer)["code"] is None


async def test_everything_that_the_description_refers_to_is_in_it(shared: Server) -> None:
    schema = (await shared.client.get("/openapi.json")).json()
    referred = set(references(schema))
    assert referred >= {
        f"#/components/schemas/{name}" for name in ("ChatCompletionRequest", "ChatMessage", "ErrorBody")
    }
    for reference in referred:
        node = schema
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


async def test_every_route_is_described_and_its_failures_with_it(shared: Server) -> None:
    paths = (await shared.client.get("/openapi.json")).json()["paths"]
    assert paths.keys() >= {"/v1/chat/completions", "/v1/models", "/v1/models/{name}", "/health", "/health/ready"}
    for path in ("/v1/chat/completions", "/v1/models", "/v1/models/{name}"):
        for operation in paths[path].values():
            failure = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert failure == {"$ref": "#/components/schemas/ErrorBody"}
            assert "422" not in operation["responses"], "FastAPI's own error has another form than ours"


async def test_headers_by_which_answers_say_what_became_of_a_request_are_described(shared: Server) -> None:
    paths = (await shared.client.get("/openapi.json")).json()["paths"]
    for path, status in (("/v1/chat/completions", "200"), ("/v1/completions", "200"), ("/v1/streams", "201")):
        described = paths[path]["post"]
        told = described["responses"][status]["headers"].keys()
        assert {f"x-mulgil-{name}" for name in ("cache", "truncated-messages", "variant", "fallback")} == told
        assert [one["name"] for one in described["parameters"]] == ["x-mulgil-variant"]


async def test_no_request_made_up_from_the_description_is_the_servers_fault(shared: Server, tmp_path: Path) -> None:
    schema = (await shared.client.get("/openapi.json")).json()
    # Or nearly all of them would end at an unknown model.
    for name in ("ChatCompletionRequest", "CompletionRequest"):
        schema["components"]["schemas"][name]["properties"]["model"] = {"enum": [MODEL]}
    # Each of its answers takes seconds, as it must; tests/test_doctor.py tries its bounds.
    del schema["paths"]["/v1/doctor/stream"]
    (tmp_path / "openapi.json").write_bytes(orjson.dumps(schema))
    checks = "not_a_server_error,content_type_conformance,response_schema_conformance"
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", shared.url, "--mode", "all"),
        *("--header", f"Authorization: Bearer {KEY}", "--checks", checks, "--phases", "coverage,fuzzing"),
        *("--max-examples", "60", "--max-time", str(FUZZING), "--generation-database", "none", "--no-color"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await run.communicate()
    assert run.returncode == 0, output.decode()
    assert re.search(r"Operations: +(\d+) selected / \1 total", output.decode())
