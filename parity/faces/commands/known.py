"""The command `parity known`: entries of the file of known findings, added from a run, listed and dropped."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import date
from pathlib import Path

from parity.core import project
from parity.core.case import source_of
from parity.core.errors import KnownError, UsageError, near
from parity.core.results import UNSEARCHED, Status
from parity.engine.reading import read_day, read_path
from parity.faces.commands.groups import near_by
from parity.findings import known, known_file
from parity.findings.known import Entry, Environment, Known
from parity.findings.known_place import NAME, content
from parity.report.answers import KnownEntry, KnownFile
from parity.store import run_file
from parity.store.rows import EXPIRED, Run

HELP = "findings that are accepted"
BY_DEFAULT = f"by default what [tool.parity] says, or {NAME}"
ABOUT = """\
A file of findings that are accepted, with a reason for each: parity run --known FILE fails on all others.

  parity known add run.jsonl --reason "torch 2.13 has it" --link URL --until 2027-01-31
  parity run --known parity-known.toml
  parity known drop parity-known.toml _softmax-6ea5ad"""


def add(to: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = to.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="write the causes of a run into the file", description="Write causes of a run.")
    add.add_argument("run", type=Path, metavar="RUN", help="the run file")
    how = "ids of causes (parity report RUN lists them); all by default"
    add.add_argument("cause", nargs="*", default=[], metavar="CAUSE", help=how)
    add.add_argument("--reason", default="", metavar="TEXT", help="why they are accepted; a new entry needs it")
    add.add_argument("--link", default="", metavar="URL", help="where they are reported or discussed")
    add.add_argument("--until", type=read_day, metavar="DATE", help="the last day on which they are accepted: 2027-01-31")
    add.add_argument("--file", type=read_path, metavar="FILE", help=f"the file ({BY_DEFAULT})")
    how = "what the run's device refuses (unsupported), leaves to the CPU (fallback), or has marginal, for runs with --fail-on"
    add.add_argument("--status", action="append", default=[], metavar="STATUS", help=how)
    how = "list the entries with their reasons; fails for what is expired or names no op"
    shown = actions.add_parser("list", help=how, description=how.capitalize() + ".")
    shown.add_argument("file", nargs="?", type=read_path, metavar="FILE", help=BY_DEFAULT)
    drop = actions.add_parser("drop", help="take entries out of the file", description="Take entries out of the file.")
    drop.add_argument("file", type=read_path, metavar="FILE", help="the file")
    drop.add_argument("cause", nargs="*", metavar="ID", help="ids of entries")
    how = "add the entries of another file, such as that of another branch"
    merge = actions.add_parser("merge", help=how, description=how.capitalize() + ".")
    merge.add_argument("file", type=read_path, metavar="FILE", help="the file that they are added to")
    merge.add_argument("other", type=read_path, metavar="OTHER", help="the other file")
    how = "the file that both were made from: what one of them dropped stays dropped"
    merge.add_argument("base", type=read_path, nargs="?", metavar="BASE", help=how)


def run(o: argparse.Namespace) -> int:
    """Carry out one of the actions; the exit code."""
    o.file = o.file or Path(near_by(project.found().known) or NAME)
    return {"add": _add, "list": _list, "drop": _drop, "merge": _merge}[o.action](o)


def _file(held: Known | None, path: Path, **more: tuple[str, ...]) -> KnownFile:
    """A file as it is now, for --json. held: None for one that is not there; more: what the command did."""
    from parity.report.known import what

    entries = held.entries if held is not None else ()
    today = date.today()
    rows = (KnownEntry(e.id, what(e), e.why, e.status, e.ops, e.dtypes, e.cases, e.expired(today)) for e in entries)
    return KnownFile(str(path), tuple(rows), **more)


def given(made: Run) -> Known | None:
    """The file of known findings that the shards of a run were given, if it is here."""
    name = Path(made.header.known.name)
    some = (known_file.read(path) for path in ((name, Path(name.name)) if name.name else ()) if path.exists())
    return next((held for held in some if held.code.same(made.header.known)), None)


def of_merged(made: Run) -> list[str]:
    """What the shards of a run say together of the known findings that they were given."""
    from parity.findings import causes
    from parity.findings.verdict import new_of
    from parity.report.known import count_line, lines

    if (held := given(made)) is None:
        return []
    records, deaths = new_of(made)
    new = causes.gather([r for r in records if not r.known], [d for d in deaths if not d.known])
    return [count_line(held, made.known, len(new)), *lines(held, made.known, 20)]


def _add(o: argparse.Namespace) -> int:
    from parity.findings import known_entries
    from parity.report.known import what
    from parity.report.words import plural

    made = run_file.read(o.run, partial=True)
    path: Path = o.file
    text = content(path) if path.exists() else ""
    before = known_file.parse(path, text) if text.strip() else None
    environment = Environment.of(made.header.fingerprint)
    if before is not None and before.environment.device not in ("", environment.device):
        other = f"{path} is for {before.environment.device}, and {o.run} is of {environment.device}"
        raise UsageError(f"{other}; a file is for one family of devices: name another with --file")
    held = before.by_id if before is not None else {}
    new = [*_asked(o, made), *_prolonged(o, made, held)]
    if not new:
        little = any(r.status == Status.MARGINAL for r in made.records) and Status.MARGINAL not in o.status
        more = "; what is marginal is added with --status marginal" if little else ""
        print(f"{o.run} has nothing to add: no finding that is missing in {path}{more}")
        o.answer = _file(before, path)
        return 0
    changed = known_entries.added(held, new)
    for e in changed.values():
        if not e.reason.strip():
            raise UsageError(
                f"'{e.id}' needs a reason: parity known add {o.run} {e.id} --reason TEXT; a reviewer will ask for it"
            )
    fresh = [e for e in changed.values() if e.id not in held]
    known_file.write(path, known_file.updated(text, [(e, what(e)) for e in changed.values()], environment, path=path))
    for e in changed.values():
        print(f"{'added' if e.id not in held else 'updated'} [{e.id}] {what(e)}")
    if unsearched := [e.id for e in changed.values() if e.cause is not None and UNSEARCHED in e.cause.properties]:
        ids, how = ", ".join(unsearched), f"parity run --resume {o.run}, or a run without --skip shrink"
        print(f"nobody looked for the cause of {ids}: no other finding is known by it; {how}, looks for it")
    counted = (
        f"{len(fresh)} added, {len(changed) - len(fresh)} updated, {plural(len(held) + len(fresh), 'known finding')} in {path}"
    )
    print(f"{counted}; next: parity run --known {path}")
    added, updated = tuple(e.id for e in fresh), tuple(id for id in changed if id in held)
    o.answer = _file(known_file.read(path), path, added=added, updated=updated)
    return 0


def _asked(o: argparse.Namespace, made: Run) -> list[Entry]:
    """The entries of the statuses and causes that are named; of all causes where nothing is."""
    from parity.findings import known_entries

    new: list[Entry] = []
    for status in o.status:
        if status == Status.MARGINAL:
            for c in known_entries.causes_of(made, marginal=True):
                new += known_entries.of_cause(c, made, o.reason, o.link, o.until)
            continue
        if status not in known_entries.refusals(known.WORST):
            allowed = "unsupported, fallback and marginal"
            raise UsageError(f"--status takes {allowed}, not '{status}'; findings are added by their cause")
        new += known_entries.of_status(status, made, o.reason, o.link, o.until)
    gathered = known_entries.causes_of(made) if o.cause or not o.status else ()
    if o.cause:
        names = [c.cause.id for c in gathered]
        for name in o.cause:
            if name not in _expired(made) and not any(name in (c.cause.id, *(m.id for m in c.members)) for c in gathered):
                raise UsageError(
                    f"{o.run} has no cause '{name}' to add; {near(name, names) or 'it has ' + ', '.join(names[:24])}"
                )
        gathered = tuple(one for c in gathered for one in known_entries.named(c, o.cause))
    for c in gathered:
        new += known_entries.of_cause(c, made, o.reason, o.link, o.until)
    return new


def _expired(made: Run) -> set[str]:
    """The entries that a run found after their last day."""
    return {s.id for s in made.known if s.state == EXPIRED}


def _prolonged(o: argparse.Namespace, made: Run, held: dict[str, Entry]) -> list[Entry]:
    """Those entries with a new last day."""
    ids = [id for id in held if id in _expired(made) and (not o.cause or id in o.cause)]
    if ids and o.until is None:
        print(f"expired, and left as they are: {', '.join(ids)}; --until DATE accepts them for longer")
        return []
    return [replace(held[id], until=o.until, reason=o.reason or held[id].reason, link=o.link or held[id].link) for id in ids]


def _list(o: argparse.Namespace) -> int:
    """Print the entries, and what is wrong with them, which is a failure."""
    from parity.report.known import render

    held = known_file.read(o.file)
    expired = (f"[{e.id}] expired on {e.until}: {e.reason}" for e in held.entries if e.expired(date.today()))
    o.answer = _file(held, o.file, problems=(*unknown_ops(held), *expired))
    print("\n".join([render(held, date.today()), *o.answer.problems]))
    return 1 if o.answer.problems else 0


def unknown_ops(held: Known) -> list[str]:
    """Sentences on ops that this parity has not."""
    from parity.engine import suite
    from parity.store.rows import is_own

    names = {r.name for r in suite.rows("native")}
    asked = {op: e for e in held.entries for op in e.ops if op not in names and not is_own(op)}
    if any(source_of(op) != "native" for op in asked):
        names |= {r.name for r in suite.rows("all")}
    place, hint = Path(held.code.name).name, "parity run --list lists them"
    return [
        f"{place}:{e.line}: known '{e.id}': no op is called '{op}'; {near(op, names) or hint}"
        for op, e in asked.items()
        if op not in names
    ]


def _drop(o: argparse.Namespace) -> int:
    held = known_file.read(o.file)
    ids = [held.entry(id).id for id in o.cause]
    if not ids:
        raise KnownError(f"name the entries to drop: parity known drop {o.file} ID; parity known list {o.file} lists them")
    known_file.write(o.file, known_file.dropped(content(o.file), ids, o.file))
    o.answer = _file(known_file.read(o.file), o.file, dropped=(*ids,))
    print(f"dropped {', '.join(ids)}; {len(held.entries) - len(set(ids))} left in {o.file}")
    return 0


def _merge(o: argparse.Namespace) -> int:
    from parity.findings import known_entries
    from parity.report.known import what

    ours, theirs = known_file.read(o.file), known_file.read(o.other)
    # git gives an empty base where both branches made the file
    base = known_file.read(o.base).by_id if o.base is not None and content(o.base).strip() else {}
    gone = [id for id in base if id in ours.by_id and id not in theirs.by_id]
    new = [e for id, e in theirs.by_id.items() if id not in base or id in ours.by_id]
    changed = [known_entries.of_other(e, ours.by_id.get(e.id)) for e in new]
    text = known_file.dropped(content(o.file), gone, o.file)
    pairs = [(e, what(e)) for e in changed]
    known_file.write(o.file, known_file.updated(text, pairs, like=known_file.texts(o.other), path=o.file))
    added = tuple(dict.fromkeys(e.id for e in changed if e.id not in ours.by_id))
    o.answer, fresh = _file(known_file.read(o.file), o.file, added=added, dropped=(*gone,)), len(added)
    print(f"{fresh} added, {len(gone)} dropped, {len(ours.entries) + fresh - len(gone)} in {o.file}")
    return 0
