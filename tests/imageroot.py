"""Does what the Dockerfile says without a Docker engine, and runs the result as a container would be run.

    unshare --mount --propagation private python tests/imageroot.py BUILD FOLDER [CMD…]

Each stage is an overlay over this machine's root, in a mount namespace of its own: nothing outside FOLDER changes. It
needs root, and a machine that is much like the base image (Debian with Python); so it proves the commands and what they
make, and not the base images. Then the entry point runs as the image's user, as the first process of its own, with a
read-only root and only the folders writable that are mounted; it must become ready, answer, and end on SIGTERM.
Prints as JSON what was seen.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployment import ROOT, Stage, dockerfile
from storeservers import free_port

WRITABLE = ("/var/cache/mulgil", "/var/lib/mulgil")
_READY_WITHIN = 300
_KEY = "sk-mg-of-the-container"


def shell(*command: str, **options: Any) -> None:
    subprocess.run(command, check=True, **options)


@dataclass
class Root:
    """The file system of a stage, and what its instructions have set."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def merged(self) -> Path:
        return self.folder / "merged"

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    def mount(self) -> None:
        for part in ("upper", "work", "merged"):
            (self.folder / part).mkdir(parents=True)
        options = f"lowerdir=/,upperdir={self.upper},workdir={self.folder / 'work'}"
        shell("mount", "-t", "overlay", "overlay", "-o", options, str(self.merged))
        for inside in ("proc", "dev", "sys"):
            shell("mount", "--rbind", f"/{inside}", str(self.merged / inside))

    def at(self, path: str) -> Path:
        """Where an absolute path of the stage, or one from its folder, is on this machine."""
        return self.merged / os.path.join(self.workdir, path).lstrip("/")

    def run(self, command: str) -> None:
        """A RUN, in the shell that Docker would use."""
        begun = time.monotonic()
        script = f"cd {shlex.quote(self.workdir)} && {command}"
        shell(
            "chroot",
            str(self.merged),
            "/bin/sh",
            "-c",
            script,
            env=_pip_of_this_machine() | self.variables,
            stdout=sys.stderr,
        )
        self.seconds[command[:60]] = round(time.monotonic() - begun, 1)


def _pip_of_this_machine() -> dict[str, str]:
    """How this machine reaches its package index, and where its Python is."""
    python = Path(sys.base_prefix) / "bin"
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http", "HTTP"))}
    return kept | {"PATH": f"{python}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


def build(name: str, folder: Path, arguments: dict[str, str], roots: dict[str, Root]) -> Root:
    """The stage of this name, after those that it needs."""
    if name in roots:
        return roots[name]
    stage = dockerfile()[1][name]
    base = filled(stage.base, arguments)
    if base in dockerfile()[1]:
        root = build(base, folder, arguments, roots)  # goes on in it: of each stage one other is made
    else:
        root = Root(folder / name)
        root.mount()
    roots[name] = root
    for word, argument in stage.instructions:
        perform(root, stage, (word, argument), arguments, roots)
    return root


def perform(
    root: Root, stage: Stage, instruction: tuple[str, str], arguments: dict[str, str], roots: dict[str, Root]
) -> None:
    """One instruction; those that only describe the image are read when it is run."""
    word, argument = instruction
    if word == "ARG":
        name, _, default = argument.partition("=")
        root.variables[name] = arguments.get(name, default.strip('"'))
    elif word == "ENV":
        known = {"PATH": _pip_of_this_machine()["PATH"]} | root.variables
        for part in shlex.split(argument):
            name, _, value = part.partition("=")
            root.variables[name] = re.sub(r"\$(\w+)", lambda found: known[found[1]], value)
    elif word == "WORKDIR":
        root.workdir = argument
        root.at(".").mkdir(parents=True, exist_ok=True)
    elif word == "COPY":
        *sources, target = shlex.split(argument)
        for source in sources:
            copy(ROOT / source, root.at(target), into=len(sources) > 1 or target.endswith("/"))
    elif word == "RUN":
        mount = re.match(r"--mount=type=bind,from=(\w+),source=(\S+),target=(\S+)\s+(.*)", argument)
        if mount:
            other = build(mount[1], root.folder.parent, arguments, roots)
            root.at(mount[3]).mkdir()
            shell("mount", "--bind", str(other.at(mount[2])), str(root.at(mount[3])))
        root.run(mount[4] if mount else argument)
        if mount:
            shell("umount", str(root.at(mount[3])))


def filled(text: str, arguments: dict[str, str]) -> str:
    """The text with the arguments from before the first stage."""
    known = dockerfile()[0] | arguments
    return re.sub(r"\$\{(\w+)\}", lambda found: known[found[1]], text)


def copy(source: Path, target: Path, *, into: bool) -> None:
    """As COPY does: a folder's content, a file to a name or into a folder."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        return
    target = target / source.name if into or target.is_dir() else target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


class Container:
    """The image, running.

    Args:
        root: of its last stage.
        command: instead of CMD; empty for CMD.
        variables: beside the image's.
    """

    def __init__(self, root: Root, command: list[str], variables: dict[str, str]) -> None:
        last = dockerfile()[1]["gateway"]
        self._root = root
        self._user = last.all("USER")[0].split(":")
        self._environment = root.variables | variables
        self._words = json.loads(last.all("ENTRYPOINT")[0]) + (command or json.loads(last.all("CMD")[0]))
        self._check = json.loads(last.all("HEALTHCHECK")[0].partition("CMD ")[2])

    def confine(self) -> None:
        """A read-only root; writable are the two folders, and what is in memory."""
        merged = str(self._root.merged)
        (self._root.merged / "root").chmod(0o711)  # this machine's Python may lie below it
        shell("umount", "--recursive", "--lazy", f"{merged}/proc")  # the container gets its own
        for number, path in enumerate(WRITABLE):
            volume = self._root.folder / f"volume-{number}"
            volume.mkdir()
            shutil.chown(volume, int(self._user[0]), int(self._user[1]))
            shell("mount", "--bind", str(volume), f"{merged}{path}")
        shell("mount", "-t", "tmpfs", "-o", "size=2g,mode=1777", "shm", f"{merged}/dev/shm")
        shell("mount", "-t", "tmpfs", "-o", "size=1g,mode=1777", "tmp", f"{merged}/tmp")
        shell("mount", "-o", "remount,ro", merged)

    def inside(self, words: list[str], *, own: bool = False) -> list[str]:
        """The command that does this in the container, or as the first process of its *own* one."""
        merged = str(self._root.merged)
        confined = [
            "setpriv",
            f"--reuid={self._user[0]}",
            f"--regid={self._user[1]}",
            "--clear-groups",
            "--no-new-privs",
            "--bounding-set=-all",
            "--inh-caps=-all",
        ]
        script = f"cd {self._root.workdir} && exec {shlex.join(words)}"
        namespace = ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={merged}/proc"] if own else []
        return [*namespace, "chroot", merged, *confined, "/bin/sh", "-c", script]

    def start(self) -> None:
        self._process = subprocess.Popen(self.inside(self._words, own=True), env=self._environment, stdout=sys.stderr)

    def asked(self, words: list[str]) -> int:
        """How a command ends that is run in the container."""
        return subprocess.run(self.inside(words), env=self._environment, stdout=sys.stderr, check=False).returncode

    def until_healthy(self, path: str) -> float:
        """Seconds until the health check is content with this path."""
        begun = time.monotonic()
        while self.asked([*self._check[:-1], path]):
            assert self._process.poll() is None, "the container has ended"
            assert time.monotonic() - begun < _READY_WITHIN, f"{path} is not well"
            time.sleep(0.5)
        return round(time.monotonic() - begun, 1)

    def first_process(self) -> int:
        """What is process 1 in the container, as this machine numbers it."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0])

    def stop(self) -> tuple[int, float]:
        """How it ends after SIGTERM, and after how many seconds."""
        begun = time.monotonic()
        os.kill(self.first_process(), signal.SIGTERM)
        return self._process.wait(60), round(time.monotonic() - begun, 1)


def answer(port: int) -> str:
    """What the model says."""

    def asked(path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            data=json.dumps(body).encode() if body else None,
            headers={"authorization": f"Bearer {_KEY}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    model = asked("/v1/models")["data"][0]["id"]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    told = asked("/v1/chat/completions", {"model": model, "temperature": 0, "max_tokens": 20, "messages": question})
    return str(told["choices"][0]["message"]["content"])


def megabytes(path: Path) -> int:
    """Of all that is below it."""
    return int(subprocess.run(["du", "-sm", str(path)], capture_output=True, text=True, check=True).stdout.split()[0])


def main() -> None:
    """Build, run, tell."""
    chosen, folder, command = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    roots: dict[str, Root] = {}
    root = build("gateway", folder, {"BUILD": chosen}, roots)
    port = free_port()
    variables = {
        "MULGIL_PORT": str(port),
        "MULGIL_API_KEYS": _KEY,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "MULGIL_SHUTDOWN_GRACE": "5",
    }
    if chosen == "simulated":
        variables["MULGIL_ENGINE"] = "simulated"
    container = Container(
        root,
        command,
        variables | {name: value for name, value in _pip_of_this_machine().items() if name.startswith("PIP_")},
    )
    container.confine()
    container.start()
    alive, ready = container.until_healthy("/health/live"), container.until_healthy("/health/ready")
    seen = {
        "alive_after": alive,
        "ready_after": ready,
        "first_process": Path(f"/proc/{container.first_process()}/comm").read_text().strip(),
        "user": Path(f"/proc/{container.first_process()}").stat().st_uid,
        "answer": answer(port),
        "can_write": [
            path
            for path in ("/", "/opt/mulgil", "/etc", *WRITABLE, "/tmp", "/dev/shm")
            if container.asked(["touch", f"{path}/x"]) == 0
        ],
        "stopped": container.stop(),
        "megabytes": megabytes(root.upper),
        "volumes": {path: megabytes(root.folder / f"volume-{number}") for number, path in enumerate(WRITABLE)},
        "seconds": root.seconds,
    }
    sys.stdout.write(json.dumps(seen, indent=1))


if __name__ == "__main__":
    main()
