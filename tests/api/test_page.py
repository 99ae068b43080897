"""The chat page at `/`: open to everybody, and as strict as a page can be."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from harness import Server, serving, settings

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "src/mulgil/page"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.*"))
ADDRESSES = ["/" if name == "index.html" else f"/page/{name}" for name in FILES]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_every_file_is_served_without_a_key_and_as_strictly_as_can_be(shared: Server, address: str) -> None:
    answer = await shared.client.get(address, headers={"authorization": ""})
    assert answer.status_code == 200
    policy = dict(rule.strip().partition(" ")[::2] for rule in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_each_kind_of_file_has_its_type(shared: Server) -> None:
    types = {
        address: (await shared.client.get(address)).headers["content-type"].partition(";")[0] for address in ADDRESSES
    }
    assert types["/"] == "text/html"
    assert types["/page/style.css"] == "text/css"
    assert types["/page/icon.svg"] == "image/svg+xml"
    assert types["/page/app.js"] == types["/page/client/index.js"] == "text/javascript"


async def test_a_browser_that_has_it_already_is_told_so(shared: Server) -> None:
    first = await shared.client.get("/")
    again = await shared.client.get("/", headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert (await shared.client.get("/", headers={"if-none-match": '"other"'})).content == first.content


@pytest.mark.parametrize(
    "path", ["/page/nobody.js", "/page/../app.py", "/page/%2e%2e/app.py", "/page//", "/page/__init__.py"]
)
async def test_there_is_nothing_else_below_it(shared: Server, path: str) -> None:
    assert (await shared.client.get(path)).status_code == 404


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/nobody", "/index.html", "/page"])
async def test_that_it_is_open_opens_nothing_else(shared: Server, path: str) -> None:
    assert (await shared.client.get(path, headers={"authorization": ""})).status_code == 401


async def test_it_can_be_switched_off() -> None:
    async with serving(settings(chat_page=False)) as server:
        assert (await server.client.get("/")).status_code == 404
        assert (await server.client.get("/", headers={"authorization": ""})).status_code == 401
        assert (await server.client.get("/page/app.js", headers={"authorization": ""})).status_code == 401


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_a_host_or_makes_html_of_text(name: str) -> None:
    text = (FOLDER / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|style=|\son[a-z]+=", text)


def test_both_languages_say_the_same_things() -> None:
    text = (FOLDER / "words.js").read_text()
    english, korean = (
        re.findall(r"^  ([a-zA-Z]+): ", part, re.MULTILINE) for part in re.findall(r"= \{(.*?)^\};", text, re.M | re.S)
    )
    assert english == korean
    used = re.findall(r'data-words(?:-label|-placeholder)?="(\w+)"', (FOLDER / "index.html").read_text())
    assert set(used) <= set(english)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js") and "/" not in name])
def test_its_scripts_stay_short(name: str) -> None:
    assert len((FOLDER / name).read_text().splitlines()) <= 300


def test_the_wheel_has_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "."]
    subprocess.run(command, cwd=ROOT, check=True, timeout=50, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name.removeprefix("mulgil/page/") for name in zipfile.ZipFile(wheel).namelist()}
    assert set(FILES) <= packed
