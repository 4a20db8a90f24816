"""What a package says of where it comes from: its commit, its addresses, and a README whose links lead somewhere.

The address is that of the repository that GitHub builds, else of the remote `origin`; without one, links into the repository
become plain text. An sdist keeps all of it for the wheel that is built from it.
"""

import os
import re
import subprocess
import tempfile
from email import message_from_bytes
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

COMMIT = "parity/_data/commit"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")


def git(root: str, *words: str) -> str:
    """What git says; "" where it says nothing, as in an sdist."""
    try:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def commit(root: str) -> str:
    kept = Path(root, COMMIT)
    return kept.read_text() if kept.is_file() else os.environ.get("GITHUB_SHA") or git(root, "rev-parse", "HEAD")


def address(root: str) -> str:
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
    origin = git(root, "remote", "get-url", "origin")
    found = re.fullmatch(r"(?:https://|git@|ssh://git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?", origin)
    return f"https://{found[1]}/{found[2]}" if found else ""


def readme(text: str, url: str, at: str) -> str:
    """The README with whole links. at: the commit that they show."""
    return LINK.sub(rf"[\1]({url}/blob/{at}/\2)" if url and at else r"\1", text)


class Metadata(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict) -> None:
        if (made := Path(self.root, "PKG-INFO")).is_file():
            given = message_from_bytes(made.read_bytes())
            text = given.get_payload(decode=True).decode()
            metadata["urls"] = dict(x.split(", ", 1) for x in given.get_all("Project-URL", []))
        else:
            url, at = address(self.root), commit(self.root)
            text = readme(Path(self.root, "README.md").read_text(encoding="utf-8"), url, at)
            pages = {"Repository": "", "Documentation": f"/blob/{at}/parity/manual/README.md", "Issues": "/issues"}
            pages["Changelog"] = f"/blob/{at}/.github/CHANGELOG.md"
            metadata["urls"] = {name: url + page for name, page in pages.items()} if url else {}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Build(BuildHookInterface):
    """Writes the commit into the package."""

    def initialize(self, version: str, build_data: dict) -> None:
        at = commit(self.root)
        if version == "editable" or not at or Path(self.root, COMMIT).is_file():
            return
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name, "commit")
        path.write_text(at)
        build_data["force_include"][str(path)] = COMMIT

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()
