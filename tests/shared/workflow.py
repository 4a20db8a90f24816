"""Runs the jobs of a GitHub workflow here, as far as they can be: expressions are filled in, every `run:` is executed with the
shell and the files that a runner gives it, composite actions of this repository are entered, and other actions are played (a
checkout does nothing; caches and artifacts are folders)."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SECONDS = 300  # of a script: an examination and a run, on a machine with other work
# python3 of the runner: makes an "environment" of two scripts, and installs nothing but checks what it is told to install.
PYTHON = """#!/bin/bash
set -e
case "$*" in
"-m venv --clear "*)
  mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
"-m pip cache dir")
  echo "$HOME/.cache/pip" ;;
"-m pip install"*)
  echo "$0 $*" >> {log}
  root="${{@: -1}}"
  [ -d "$root" ] || exit 0
  grep -q '^name = "torch-parity"' "$root/pyproject.toml"
  [ "$5" != -c ] || grep -q '^pytest==' "$6"
  printf '#!/bin/bash\\nPYTHONPATH=%s exec {python} -m parity "$@"\\n' "$root" > "$(dirname "$0")/parity"
  chmod +x "$(dirname "$0")/parity" ;;
*) exec {python} "$@" ;;
esac
"""
# A Python that a script starts: the process of the test starts it (`relayed`), so that it has imported torch already.
START = """#!{python} -IS
import json, os, socket, sys
there = socket.socket(socket.AF_UNIX)
there.connect("\\0" + os.environ["RELAY"])
socket.send_fds(there, [json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
os._exit(int(there.recv(16)))
"""
GH = """#!/bin/bash
echo "$*" >> {folder}/gh.log
[ "$2" != list ] || cat {folder}/open-proposal 2> /dev/null || true
"""
_RELAYS = itertools.count()
TOKEN = re.compile(r"\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>\d+)|(?P<op>==|!=|&&|\|\||!|\(|\)|,)|(?P<name>[\w.-]+))")


class Expression:
    """What stands between ${{ and }}: the operators and functions that the workflow uses. An unknown word is an error."""

    def __init__(self, text: str, contexts: Mapping[str, Any], failed: bool) -> None:
        self._tokens = list(TOKEN.finditer(text.strip()))
        if "".join(m.group() for m in self._tokens) != text.strip():
            raise ValueError(f"cannot read the expression {text!r}")
        self._at, self._contexts, self.failed, self.asked = 0, contexts, failed, False

    def value(self) -> Any:
        left = self._both()
        while self._take("||"):
            right = self._both()
            left = left or right
        return left

    def _both(self) -> Any:
        left = self._compared()
        while self._take("&&"):
            right = self._compared()
            left = left and right
        return left

    def _compared(self) -> Any:
        left = self._one()
        for sign in ("==", "!="):
            if self._take(sign):
                right = self._one()
                return (_plain(left) == _plain(right)) == (sign == "==")
        return left

    def _one(self) -> Any:
        if self._take("!"):
            return not self._one()
        if self._take("("):
            inner = self.value()
            assert self._take(")")
            return inner
        token = self._tokens[self._at]
        self._at += 1
        if token["string"] is not None:
            return token["string"][1:-1].replace("''", "'")
        if token["number"] is not None:
            return int(token["number"])
        name = token["name"]
        if self._take("("):
            assert self._take(")"), f"{name} takes no arguments here"
            self.asked = True
            return {"always": True, "cancelled": False, "success": not self.failed, "failure": self.failed}[name]
        first, *rest = name.split(".")
        found = self._contexts[first]
        for key in rest:
            found = found.get(key, "") if isinstance(found, Mapping) else ""
        return found

    def _take(self, sign: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at]["op"] == sign:
            self._at += 1
            return True
        return False


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def filled(value: Any, contexts: Mapping[str, Any], failed: bool = False) -> Any:
    """A value of the file with its expressions computed."""
    if not isinstance(value, str):
        return value
    whole = re.fullmatch(r"\s*\$\{\{(.*)\}\}\s*", value, re.DOTALL)
    if whole and "${{" not in whole[1]:
        return Expression(whole[1], contexts, failed).value()
    return re.sub(r"\$\{\{(.*?)\}\}", lambda m: _plain(Expression(m[1], contexts, failed).value()), value)


def wanted(condition: str | None, contexts: Mapping[str, Any], failed: bool) -> bool:
    """Whether a step or job runs: without a status function only if nothing has failed."""
    if condition is None:
        return not failed
    text = condition.strip()
    text = text[3:-2] if text.startswith("${{") else text
    expression = Expression(" ".join(text.split()), contexts, failed)
    value = bool(expression.value())
    return value and (expression.asked or not failed)


@contextlib.contextmanager
def relayed() -> Iterator[str]:
    """Start the Pythons that a script of this machine asks for; the name under which they are asked for."""
    name = f"parity-{os.getpid()}-{next(_RELAYS)}"

    def start(connection: socket.socket) -> None:
        with connection:
            asked, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
            arguments, folder, env = json.loads(asked)
            given, out, err = streams
            command = [sys.executable, *arguments]
            done = subprocess.run(command, cwd=folder, env=env, stdin=given, stdout=out, stderr=err, check=False)
            connection.send(str(done.returncode % 256).encode())
            for stream in streams:
                os.close(stream)

    def listen() -> None:
        with contextlib.suppress(OSError):  # it was shut down
            while True:
                threading.Thread(target=start, args=(asks.accept()[0],)).start()

    with socket.socket(socket.AF_UNIX) as asks:
        asks.bind(f"\0{name}")
        asks.listen()
        threading.Thread(target=listen).start()
        try:
            yield name
        finally:
            asks.shutdown(socket.SHUT_RDWR)


@dataclass
class Runner:
    """A machine, and what GitHub keeps. folder: of the checkout; store: of caches and artifacts; path: of its programs; inputs:
    what the action gets instead of what the workflow says; ran: (job, name) of every step that was run with its exit code."""

    folder: Path
    store: Path
    path: str
    event: str = "push"
    ref: str = "main"
    run_id: int = 1
    dispatch: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    action: Path = ROOT / ".github/actions/parity"
    ran: list[tuple[str, str, int]] = field(default_factory=list)
    output: str = ""
    _count: Any = field(default_factory=itertools.count)

    def run(self, file: Path, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
        """The jobs of a workflow in the order of the file; job -> success, failure or skipped."""
        jobs = {k: v for k, v in yaml.safe_load(file.read_text())["jobs"].items() if k not in leave_out}
        needs: dict[str, Any] = {}
        for name, job in jobs.items():
            shards = job.get("strategy", {}).get("matrix", {}).get("shard", [None])
            own = {n: needs[n] for n in ([job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", []))}
            given = self.given() | {"needs": own}
            before = any(n["result"] != "success" for n in own.values())
            if not wanted(job.get("if"), given, before):
                needs[name] = {"result": "skipped", "outputs": {}}
                continue
            results, outputs = [], {}
            for shard in shards:
                contexts = given | {"matrix": {"shard": shard}, "strategy": {"job-total": len(shards)}}
                steps = self.job(name, job["steps"], contexts)
                results.append(steps.pop("result"))
                outputs = {k: filled(v, {**contexts, "steps": steps}) for k, v in job.get("outputs", {}).items()}
            good = all(r == "success" for r in results) or job.get("continue-on-error", False)
            needs[name] = {"result": "success" if good else "failure", "outputs": outputs}
        return {name: n["result"] for name, n in needs.items()}

    def given(self) -> dict[str, Any]:
        """The contexts of every expression."""
        event = {} if self.event == "schedule" else {"repository": {"default_branch": "main"}}  # as GitHub sends them
        github: dict[str, Any] = {
            "event_name": self.event,
            "event": event,
            "ref_name": self.ref,
            "ref_type": "branch",
            "ref": f"refs/heads/{self.ref}",
        }
        github |= {"run_id": self.run_id, "run_attempt": 1, "repository": "someone/model", "server_url": "https://github.com"}
        github |= {"token": "TOKEN", "action_path": str(self.action)}
        return {
            "github": github,
            "inputs": dict(self.dispatch),
            "vars": dict(self.variables),
            "runner": {"os": "macOS", "arch": "ARM64"},
            "needs": {},
            "steps": {},
        }

    def job(self, name: str, steps: list[dict[str, Any]], contexts: Mapping[str, Any]) -> dict[str, Any]:
        """The steps of a job on a fresh machine, but for the checkout; their outputs, and `result`."""
        for leftover in ("parity-out", "parity-before", "parity-after", "parity-shards", "parity-night"):
            shutil.rmtree(self.folder / leftover, ignore_errors=True)
        self._temp = self.store / f"temp-{next(self._count)}"
        self._temp.mkdir(parents=True)
        self._path = self.path
        return self._steps(name, steps, contexts)

    def _steps(self, job: str, steps: list[dict[str, Any]], contexts: Mapping[str, Any]) -> dict[str, Any]:
        done: dict[str, Any] = {}
        failed = False
        for step in steps:
            known = {**contexts, "steps": done}
            if not wanted(step.get("if"), known, failed):
                continue
            code, outputs = self._step(job, step, known)
            failed |= code != 0 and not step.get("continue-on-error", False)
            if "id" in step:
                done[step["id"]] = {"outputs": outputs, "outcome": "failure" if code else "success"}
        return {**done, "result": "failure" if failed else "success"}

    def _step(self, job: str, step: Mapping[str, Any], contexts: Mapping[str, Any]) -> tuple[int, Mapping[str, str]]:
        if "run" in step:
            return self._script(job, step, contexts)
        given = {k: filled(v, contexts) for k, v in step.get("with", {}).items()}
        if "/.github/actions/" in step["uses"]:
            tree = yaml.safe_load((self.action / "action.yml").read_text())
            inputs = {k: v.get("default", "") for k, v in tree["inputs"].items()}
            assert not given.keys() - inputs.keys(), "the workflow gives an input that the action lacks"
            inputs |= {k: _plain(v) for k, v in (given | dict(self.inputs)).items()}
            inner = self._steps(job, tree["runs"]["steps"], {**contexts, "inputs": inputs})
            result = inner.pop("result")
            outputs = {k: filled(v["value"], {"inputs": inputs, "steps": inner}) for k, v in tree.get("outputs", {}).items()}
            return int(result != "success"), outputs
        self._played(step["uses"].partition("@")[0], given)
        return 0, {}

    def _played(self, action: str, given: Mapping[str, Any]) -> None:
        if action == "actions/cache/restore":
            prefix = given.get("restore-keys", given["key"]).strip()
            kept = sorted(
                (p for p in (self.store / "caches").glob("*") if p.name.startswith(prefix)), key=lambda p: p.stat().st_mtime
            )
            if kept:
                (self.folder / given["path"]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(kept[-1], self.folder / given["path"])
        elif action == "actions/cache/save":
            (self.store / "caches").mkdir(parents=True, exist_ok=True)
            assert not (self.store / "caches" / given["key"]).exists(), "a saved cache is never overwritten"
            shutil.copy(self.folder / given["path"], self.store / "caches" / given["key"])
        elif action == "actions/upload-artifact":
            there = self.store / "artifacts" / given["name"]
            shutil.rmtree(there, ignore_errors=True)
            if (self.folder / given["path"].split()[0]).exists():
                shutil.copytree(self.folder / given["path"].split()[0], there, ignore=shutil.ignore_patterns("baseline.jsonl"))
        elif action == "actions/download-artifact":
            for there in (self.store / "artifacts").glob("*"):
                if fnmatch.fnmatch(there.name, given.get("pattern", given.get("name"))):
                    into = self.folder / given["path"] / (there.name if not given.get("merge-multiple") else "")
                    shutil.copytree(there, into, dirs_exist_ok=True)
        else:
            assert action in ("actions/checkout", "actions/setup-python", "actions/cache"), action

    def _script(self, job: str, step: Mapping[str, Any], contexts: Mapping[str, Any]) -> tuple[int, Mapping[str, str]]:
        assert "${{" not in step["run"], "an expression in a script is a way in for whoever writes its value: use env"
        files = {k: self._temp / k for k in ("GITHUB_OUTPUT", "GITHUB_PATH")}
        for f in files.values():
            f.write_text("")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "COV_", "PYTEST_"))}
        env |= {k: str(v) for k, v in files.items()}
        env |= {"PATH": self._path, "RUNNER_TEMP": str(self._temp), "GITHUB_STEP_SUMMARY": str(self.store / "summary.md")}
        env |= {"ImageOS": "macos15", "RUNNER_ARCH": "ARM64", "GITHUB_ACTIONS": "true"}
        env |= {k: _plain(filled(v, contexts)) for k, v in step.get("env", {}).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        with relayed() if sys.platform == "linux" else contextlib.nullcontext("") as env["RELAY"]:
            done = subprocess.run(
                command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
                check=False,
            )  # fmt: skip
        name = step.get("name", step["run"][:40])
        self.ran.append((job, name, done.returncode))
        self.output += f"== {job}: {name} ({done.returncode})\n{done.stdout}"
        more = [line for line in files["GITHUB_PATH"].read_text().splitlines() if line]
        self._path = os.pathsep.join([*more, self._path])
        pairs = (line.partition("=") for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        return done.returncode, {key: value for key, _, value in pairs}


def machine(folder: Path, inputs: Mapping[str, str], python: str = "") -> Runner:
    """A machine with an empty project in `folder`, whose pip installs nothing: parity runs from the folder that it is given,
    with this Python, by default a warm one of the test. inputs: what the action gets instead of what a workflow says."""
    for name in ("model", "bin", "store"):
        (folder / name).mkdir()
    programs = {"gh": GH.format(folder=folder)}
    if not python and sys.platform == "linux":
        python = str(folder / "bin/start")
        programs["start"] = START.format(python=sys.executable)
    programs["python3"] = PYTHON.format(python=python or sys.executable, log=folder / "pip.log")
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return Runner(folder / "model", folder / "store", f"{folder / 'bin'}:/usr/bin:/bin", inputs=inputs)
