"""Copies for another interpreter what it is missing of what parity imports. That interpreter runs this file by its path, as
it may have nothing but torch: `python lending.py LENT FOLDER...`. LENT holds parity; the FOLDERs are the `sys.path` of the
interpreter that lends. The last line that it prints is its answer in JSON: `python`, its version, and `torch`, that of its
torch, or `why` it cannot run parity and what is `missing` for that.

What parity requires and torch does not is lent whole, so that both sides have the same pytest and Hypothesis, unless it is
compiled for another Python. Whatever else is missing is found by importing all of parity. torch is never lent.
"""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
import shutil
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

LEAST = (3, 11)
COMPILED = re.compile(r"\.cpython-(\d+)-")


class Lender:
    """Copies modules into a folder, each with the whole distribution that it belongs to."""

    def __init__(self, lent: Path, folders: list[str]) -> None:
        self._lent, self._folders = lent, folders
        self._here = {_name(d): d for d in metadata.distributions(path=folders)}
        self._tried: list[str] = []  # modules that were missing

    def lend_required(self) -> None:
        """Lend what parity requires, except torch and numpy and what torch itself requires."""
        there = {_name(d): d for d in metadata.distributions()}
        own = {"torch-parity", "torch", "numpy"} | _required("torch", self._here) | _required("torch", there)
        for name in _required("torch-parity", self._here) - own:
            if not self._other_pythons(self._here[name]):  # what the interpreter has of its own must not be hidden
                self._copy(self._here[name])

    def imports(self, name: str) -> None:
        """Import a module, and lend what is missing for that."""
        while True:
            importlib.invalidate_caches()
            try:
                importlib.import_module(name)
                return
            except ModuleNotFoundError as e:
                missing = (e.name or name).partition(".")[0]
                if missing in ("torch", *self._tried) or not self._lend(missing):
                    raise

    def problem(self, e: Exception) -> dict[str, str]:
        """Why it cannot run parity, after an exception of `imports`."""
        if isinstance(e, ModuleNotFoundError) and e.name == "torch":
            return {"why": "it has none", "missing": "torch"}
        last = self._owner(self._tried[-1]) if self._tried else None
        if last and (built := self._other_pythons(last)):
            versions = ", ".join(f"{b[0]}.{b[1:]}" for b in sorted(built))
            return {"why": f"it has none, and that of this Python is compiled for {versions}", "missing": _name(last)}
        return {"why": f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:200]}", "missing": ""}

    @staticmethod
    def _other_pythons(owner: metadata.Distribution) -> set[str]:
        """The Pythons that a distribution is compiled for ("311"), if this is none of them."""
        built = {m[1] for f in owner.files or () if (m := COMPILED.search(f.name))}
        return set() if "{}{}".format(*sys.version_info) in built else built

    def _lend(self, module: str) -> bool:
        self._tried.append(module)
        if owner := self._owner(module):
            self._copy(owner)
            return True
        spec = PathFinder.find_spec(module, self._folders)
        if spec is None or spec.origin is None:
            return False
        source = Path(spec.origin)
        if spec.submodule_search_locations:
            shutil.copytree(source.parent, self._lent / module)
        else:
            shutil.copy2(source, self._lent)
        return True

    def _owner(self, module: str) -> metadata.Distribution | None:
        tops = (module, f"{module}.py")
        return next((d for d in self._here.values() if any(f.parts[0] in tops for f in d.files or ())), None)

    def _copy(self, owner: metadata.Distribution) -> None:
        for f in owner.files or ():
            source = Path(str(owner.locate_file(f)))
            if ".." not in f.parts and source.is_file():
                (self._lent / f).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, self._lent / f)


def _name(d: metadata.Distribution) -> str:
    return _plain(d.metadata["Name"] or "")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _required(name: str, of: dict[str, metadata.Distribution]) -> set[str]:
    """A distribution and all that it requires, as far as they are installed."""
    found: set[str] = set()
    left = [name]
    while left:
        one = left.pop()
        if one in of and one not in found:
            found.add(one)
            left += [
                _plain(re.split(r"[^\w.-]", need, maxsplit=1)[0]) for need in of[one].requires or () if "extra ==" not in need
            ]
    return found


def main(lent: str, *folders: str) -> dict[str, object]:
    """Lend what is missing here; the answer."""
    if sys.version_info < LEAST:
        return {}
    sys.path.insert(0, lent)
    lender = Lender(Path(lent), list(folders))
    lender.lend_required()
    try:
        if importlib.util.find_spec("torch") is None:
            raise ModuleNotFoundError(name="torch")
        for name in ("numpy", "torch", "parity"):
            lender.imports(name)
        for m in pkgutil.walk_packages([str(Path(lent, "parity"))], "parity."):
            if m.name != "parity.__main__" and "._data" not in m.name:
                lender.imports(m.name)
    except Exception as e:  # whatever a torch raises when it is imported
        return dict(lender.problem(e))
    return {"torch": str(sys.modules["torch"].__version__)}


if __name__ == "__main__":
    print("\n" + json.dumps({"python": sys.version_info[:3], **main(*sys.argv[1:])}))
