"""Texts that may be sent to somebody else: without the names and places of the person and the machine that made them."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

KEPT = "PYTORCH_"  # variables whose values stay: they say how torch was run
SHORTEST_NAME, SHORTEST_VALUE = 3, 8  # characters of a name or a value that is looked for at all
# Values that many machines share say nothing of a person.
COMMON = re.compile(r"[\d.:]+|[a-z]{2}_[A-Z]{2}\.UTF-8|xterm.*|(/usr|/opt|/bin|/sbin|/etc)(/[\w.:/-]*)?")
HOMES = re.compile(r"(/Users|/home)/(?!Shared\b)[^/\s\"'\\:,)]+")


class Anonymous:
    """Replaces what names a person or a machine: home, working and temporary folders, user and host names, and the values of
    environment variables other than PYTORCH_..."""

    def __init__(self, secrets: Mapping[str, str], names: Mapping[str, str]) -> None:
        """secrets: text -> what stands for it, replaced anywhere. names: the same, replaced where it is a word of its own."""
        self._secrets = {form: mask for text, mask in secrets.items() for form in _forms(text)}
        self._names = {form: mask for text, mask in names.items() for form in _forms(text)}
        self._anywhere = _any_of(self._secrets, "{}")
        self._as_word = _any_of(self._names, r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])")

    def text(self, text: str) -> str:
        """The text without them."""
        text = self._anywhere.sub(lambda m: self._secrets[m[0]], text) if self._anywhere else text
        text = HOMES.sub("~", text)
        return self._as_word.sub(lambda m: self._names[m[0].lower()], text) if self._as_word else text


def of_this_machine(vocabulary: Collection[str], variables: Mapping[str, str] | None = None) -> Anonymous:
    """For what this process, and others that it starts, may have written. vocabulary: words that stay whatever they are called:
    a user named `max` is not to be told from an operator, and the word names nobody."""
    variables = os.environ if variables is None else variables
    folders = {str(Path.home()): "~", os.path.realpath(Path.home()): "~", variables.get("HOME", ""): "~"}
    folders |= {tempfile.gettempdir(): "TMP", os.path.realpath(tempfile.gettempdir()): "TMP", os.getcwd(): "HERE"}
    folders |= {sys.prefix: "PYTHON", sys.base_prefix: "PYTHON", str(Path(__file__).resolve().parents[2]): "PARITY"}
    users = {variables.get(v, "") for v in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")} | {_user(), Path.home().name}
    hosts = {platform.node(), socket.gethostname(), variables.get("HOSTNAME", ""), variables.get("HOST", "")}
    hosts |= {h.partition(".")[0] for h in hosts}
    known, people = {w.lower() for w in vocabulary}, {n.lower() for n in users | hosts}
    names = {n.lower(): "USER" for n in users} | {n.lower(): "HOST" for n in hosts}
    names = {n: mask for n, mask in names.items() if len(n) >= SHORTEST_NAME and n not in known}
    values = {
        v: f"${k}"
        for k, v in variables.items()
        if not k.startswith(KEPT) and len(v) >= SHORTEST_VALUE and v.lower() not in known | people and not COMMON.fullmatch(v)
    }
    return Anonymous({**values, **{f: mask for f, mask in folders.items() if len(f) > 1}}, names)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a process without a name
        return ""


def _forms(text: str) -> set[str]:
    """As it is, and as JSON writes it."""
    return {text, json.dumps(text)[1:-1]}


def _any_of(texts: Collection[str], around: str) -> re.Pattern[str] | None:
    """The longest first: a home folder lies in others. Names in either case, as hosts are written."""
    parts = "|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True) if t)
    return re.compile(around.format(f"(?:{parts})"), re.IGNORECASE if around != "{}" else 0) if parts else None
