#!/usr/bin/env bash
# parity as a gate, in three steps: gate.sh install, gate.sh run, gate.sh report. The composite action calls them, and any other
# CI can: the chapter `ci` of the manual shows GitLab. Each input that action.yml describes is a variable here, `torch` is
# PARITY_TORCH. Written for the bash 3.2 of macOS.
set -euo pipefail

root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=${PARITY_FOLDER:-parity-out}
venv=${RUNNER_TEMP:-$PWD/.parity}/parity-venv
python=python3
if [ "${PARITY_OWN_PYTHON:-}" = true ]; then
    PATH=$PATH:$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
else
    [ "${1:-}" = install ] || python=$venv/bin/python
    PATH=$venv/bin:$PATH
fi

fail() {
    echo "parity: $2" >&2
    exit "$1"
}

# For later steps of a GitHub job.
output() { echo "$1=$2" >> "${GITHUB_OUTPUT:-/dev/null}"; }

# Shown with the job on GitHub, and elsewhere in a file of the folder.
summary() { cat >> "${GITHUB_STEP_SUMMARY:-$folder/summary.md}"; }

# The words of a text, as a shell would take them, each with a NUL behind it.
words() {
    "$python" -c 'import shlex, sys; sys.stdout.write("".join(w + "\0" for w in shlex.split(sys.argv[1])))' "$1" 2> /dev/null ||
        fail 2 "a quote is not closed in: $1"
}

pip_install() {
    if "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("pip") is None)'; then
        "$python" -m pip install -q "$@"
    elif command -v uv > /dev/null; then
        uv pip install -q --python "$(command -v "$python")" "$@"
    else
        fail 2 "$(command -v "$python") has no pip, and there is no uv; install one of them before this step"
    fi
}

# What a key of [tool.parity] says: it counts where an input is empty, which is not passed then.
setting() {
    "$python" -P -c 'import sys
from parity.core import errors, project
try:
    value = getattr(project.found(), sys.argv[1])
except errors.ParityError as e:
    sys.exit(f"parity: {e}")
print(value if isinstance(value, str) else ",".join(value))' "$1" || exit 2
}

install() {
    local list more=() torch=() constraints=() device=${PARITY_DEVICE:-} lane
    list=$(mktemp)
    words "${PARITY_INSTALL:-}" > "$list"
    while IFS= read -r -d '' word; do more+=("$word"); done < "$list"
    words "${PARITY_TORCH:-}" > "$list"
    while IFS= read -r -d '' word; do torch+=("$word"); done < "$list"
    if [ "${PARITY_OWN_PYTHON:-}" != true ]; then
        "$python" -m venv --clear "$venv"
        python=$venv/bin/python
        cp "$root/constraints.txt" "$list"
        [ ${#torch[@]} -eq 0 ] || grep -v '^torch==' "$root/constraints.txt" > "$list"
        constraints=(-c "$list")
    fi
    [ ${#torch[@]} -eq 0 ] || pip_install "${torch[@]}"
    [ ${#more[@]} -eq 0 ] || pip_install "${more[@]}"
    pip_install ${constraints[@]+"${constraints[@]}"} "$root"
    dirname "$(command -v parity)" >> "${GITHUB_PATH:-/dev/null}"
    [ -n "$device" ] || device=$(setting device)
    device=${device:-mps}
    # Lanes of a matrix that differ in one of these have artifacts and baselines of their own. A nightly torch is one lane.
    lane=$("$python" -c 'import importlib.metadata as m, sys
print("torch" + m.version("torch").partition(".dev")[0], "py%d.%d" % sys.version_info[:2], sep="-")')
    lane=${PARITY_NAME:-parity}-$device-$lane-${ImageOS:-own}-${RUNNER_ARCH:-$(uname -m)}
    lane=$(printf %s "$lane" | tr -c 'A-Za-z0-9._-' _)
    output lane "$lane"
    output artifact "$lane${PARITY_SHARD:+-shard-${PARITY_SHARD%/*}-of-${PARITY_SHARD#*/}}"
}

# Keep the exit code of a run, or of a merge, for `report` and for later steps.
ended() {
    echo "$1" > "$folder/code"
    output code "$1"
}

# All shards as one run.
merge() {
    local list files=() code=0
    list=$(mktemp)
    find "$PARITY_MERGE" -name run.jsonl -print0 > "$list"
    while IFS= read -r -d '' file; do files+=("$file"); done < "$list"
    [ ${#files[@]} -gt 0 ] || fail 2 "there is no run.jsonl in '$PARITY_MERGE' or below it: no shard has left one"
    parity merge -o "$folder/run.jsonl" "${files[@]}" || code=$?
    ended "$code"
    exit "$code"
}

run() {
    local list known=${PARITY_KNOWN:-} own_known fail_on ops=() more=() arguments=() code=0 pid log
    mkdir -p "$folder"
    rm -f "$folder/code"
    [ -z "${PARITY_MERGE:-}" ] || merge
    if [ -n "$known" ] && [ ! -e "$known" ]; then
        fail 2 "there is no file of known findings '$known'; parity known add writes one, or leave 'known' out"
    fi
    # Not `auto`: on a machine without the device, a simulated one would be tested in its place.
    [ -n "${PARITY_DEVICE:-}" ] || [ -n "$(setting device)" ] || PARITY_DEVICE=mps
    [ -z "${PARITY_DEVICE:-}" ] || arguments+=(--device "$PARITY_DEVICE")
    [ -z "${PARITY_SETUP:-}" ] || arguments+=(--setup "$PARITY_SETUP")
    # A suspect device (1) is named and the run goes on; an absent or unusable one (4) ends the job here.
    parity doctor ${arguments[@]+"${arguments[@]}"} || code=$?
    [ "$code" -le 1 ] || exit "$code"
    code=0
    list=$(mktemp)
    words "${PARITY_OPS:-}" > "$list"
    while IFS= read -r -d '' word; do ops+=("$word"); done < "$list"
    words "${PARITY_ARGUMENTS:-}" > "$list"
    while IFS= read -r -d '' word; do more+=("$word"); done < "$list"
    [ -n "${PARITY_PROFILE:-}" ] || [ -n "$(setting profile)" ] || PARITY_PROFILE=mac
    [ -z "${PARITY_PROFILE:-}" ] || arguments+=(--profile "$PARITY_PROFILE")
    arguments+=(--seed "${PARITY_SEED:-0}")
    [ -z "${PARITY_TIME:-}" ] || arguments+=(--time "$PARITY_TIME")
    [ -z "${PARITY_SHARD:-}" ] || arguments+=(--shard "$PARITY_SHARD")
    own_known=$(setting known)
    [ -n "$known$own_known" ] || [ ! -e parity-known.toml ] || known=parity-known.toml
    [ -z "$known" ] || arguments+=(--known "$known")
    if [ -n "$known$own_known" ] && [ "${PARITY_STRICT_KNOWN:-}" = true ]; then
        fail_on=$(setting fail_on)
        arguments+=(--fail-on "known${fail_on:+,$fail_on}")
    fi
    arguments+=(--output "$folder/run.jsonl" --findings "$folder/findings" --junit-xml "$folder/junit.xml")
    # In the background, because bash hears a signal only after a command in the foreground has ended.
    log=$(mktemp -d)/log
    mkfifo "$log"
    tee "$folder/run.log" < "$log" &
    PYTHONUNBUFFERED=1 parity run ${ops[@]+"${ops[@]}"} "${arguments[@]}" ${more[@]+"${more[@]}"} > "$log" 2>&1 &
    pid=$!
    trap 'kill -TERM "$pid"' INT TERM  # a job that is cancelled: the run writes what it has
    wait "$pid" || code=$?
    while kill -0 "$pid" 2> /dev/null; do
        code=0
        wait "$pid" || code=$?
    done
    wait
    ended "$code"
    case $code in
        0 | 1 | 3) ;;  # for `report` to judge
        *) exit "$code" ;;
    esac
}

# A report of the run. It ends as the run did, which is judged below.
of_run() {
    local code=0
    parity report "$folder/run.jsonl" "$@" || code=$?
    case $code in
        0 | 1 | 3) ;;
        *) exit "$code" ;;
    esac
}

report() {
    local code difference=0
    if [ -z "${PARITY_SHARD:-}" ] && [ -f "$folder/run.jsonl" ]; then  # of shards, the job that merges reports
        [ -z "${GITHUB_ACTIONS:-}" ] || of_run --format github
        of_run --format html -o "$folder/report.html"
        of_run --format markdown -o "$folder/report.md"
        head -c 900000 "$folder/report.md" | summary
        [ "${PARITY_BASELINE:-compare}" != compare ] || compare
    fi
    code=$(cat "$folder/code" 2> /dev/null || echo "no exit code: it did not end")
    echo "parity run ended with $code, parity diff with $difference, the shards with ${PARITY_SHARDS_RESULT:-success}"
    if [ "$code" = 0 ] && [ ! -f "$folder/run.jsonl" ]; then
        fail 1 "there is no run file in '$folder', so nothing was compared"
    fi
    if [ "$code" = 3 ] && [ -n "${PARITY_SHARD:-}" ]; then
        code=0  # a shard may be empty; whether anything was compared is judged of all of them
    fi
    case $code in
        0) ;;
        [0-9]*) exit "$code" ;;
        *) exit 1 ;;
    esac
    [ "$difference" -eq 0 ] || exit "$difference"
    [ "${PARITY_SHARDS_RESULT:-success}" = success ]
}

# With the last run that was accepted; sets `difference`.
compare() {
    if [ ! -f "$folder/baseline.jsonl" ]; then
        echo "no accepted run of the default branch to compare with, for this device, torch and Python" | tee "$folder/diff.log"
        summary < "$folder/diff.log"
        return
    fi
    parity diff "$folder/baseline.jsonl" "$folder/run.jsonl" > "$folder/diff.log" 2>&1 || difference=$?
    cat "$folder/diff.log"
    { echo '```text'; head -c 60000 "$folder/diff.log"; echo '```'; } | summary
}

case ${1:-} in
    install | run | report) "$1" ;;
    *) fail 2 "gate.sh takes one of: install, run, report" ;;
esac
