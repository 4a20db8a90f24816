"""Environments with a torch of their own and nothing else, as `parity upgrade` meets them: a virtual environment without pip
whose torch is that of this Python, or of another environment, with another version and a planted change."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

# Runs in every process of the environment before anything else: plants once torch, or a module of parity, is imported.
SITE = """
import importlib.abc, importlib.machinery, sys
PLANTS = {}

class _Planting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in PLANTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), PLANTS[name](module))
        return spec

sys.meta_path.insert(0, _Planting())

def version(torch):
    if VERSION:
        torch.__version__ = torch.torch_version.TorchVersion(VERSION)
    planted(torch)

def planted(torch):
    pass

def faults():
    return []

def devices(module):
    plain = module.resolve
    def resolve(name, given=()):
        return plain(name, [*given, *(faults() if name.startswith("sim") else [])])
    module.resolve = resolve

PLANTS |= {"torch": version, "parity.devices.resolve": devices}
"""


def environment(folder: Path, version: str = "", plant: str = "", base: str = "") -> Path:
    """Make an environment in a folder; its path. version: what its torch says it is; plant: Python that may define
    `planted(torch)`, called once torch is imported, and `faults()`, of the simulated devices there; base: an environment whose
    site-packages hold torch and nothing of parity's; by default torch and what it requires is taken from this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "planting.py").write_text(f"VERSION = {version!r}\n{SITE}\n{plant}\n", encoding="utf-8")
    (site / "planting.pth").write_text("import planting\n", encoding="utf-8")  # some systems have a sitecustomize of their own
    if base:
        (other,) = Path(base).glob("lib/python*/site-packages")
        (site / "torch.pth").write_text(f"{other}\n", encoding="utf-8")
        return folder
    for name in required("torch"):
        for top in {f.parts[0] for f in metadata.files(name) or () if f.parts[0] not in ("..", "__pycache__")}:
            there = Path(str(metadata.distribution(name).locate_file(top)))
            if there.exists() and not (site / top).exists():
                (site / top).symlink_to(there)
    return folder


def required(name: str, found: frozenset[str] = frozenset()) -> frozenset[str]:
    """An installed distribution and all that it requires."""
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return found
    found |= {name}
    for need in needs:
        inner = re.split(r"[^\w.-]", need, maxsplit=1)[0].lower()
        if "extra ==" not in need and inner not in found:
            found = required(inner, found)
    return found
