"""Text for people: reports of runs, findings, diffs and audits. Nothing here makes decisions."""
