"""Alternating runs without and with the library, each on a server that was started for it."""

import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import downloads
import tested
from figures import median, missed, spread
from servers import AGAIN, CEILING, PLAIN, PRELOADED, Missing, Server

COLUMNS = ("requests_per_second", "p50_us", "p99_us", "cpu_us", "thread_us", "calls", "client")


class Failed(Exception):
    """A run without a result, and the reason."""


def load(cell, server, options, filled):
    """Loads a server once. Returns the sample."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        command = [
            str(options.annulus), "bench", "net", cell.load[0], server.address, *cell.load[1:],
            "--connections", str(cell.connections), "--pipeline", str(cell.pipeline), "--pid", str(server.pid),
            "--cpu", options.client_cpu, "--runtime", str(options.runtime), "--warmup", str(options.warmup),
            "--repeats", "1", "--json", str(path), "--seed", str(random.randrange(1_000_000)),
        ]
        if filled:
            command = ["--filled" if word == "--fill" else word for word in command]
        if "--path" in cell.load and "/1k" in cell.load:
            command += ["--body", str(server.folder / "html" / "1k")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode or not path.exists():
            raise Failed((done.stderr + done.stdout)[-600:].strip())
        run = json.loads(path.read_text())["runs"][0]
    sample = run["sample"]
    used = sample["server"] or {}
    return {
        "requests_per_second": sample["requests_per_second"],
        "p50_us": sample["latency_uncorrected"]["p50_us"],
        "p99_us": sample["latency_uncorrected"]["p99_us"],
        "cpu_us": used.get("cpu_us_per_request"),
        "thread_us": used.get("busiest_thread_us_per_request"),
        "ring_threads_us": used.get("ring_threads_us_per_request"),
        "calls": used.get("syscalls_per_request"),
        "server_cpus": used.get("cpus"),
        "client": max(sample["client_cpu_share"]),
        # Servers behind a proxy belong to the run.
        "others_busy": 0.0 if server.behind else sample["others_busy"],
        "limit": sample["limit"],
    }


def counts(lines):
    """Returns the library's counts, summed over all processes of a server."""
    total = {}

    def add(into, more):
        for key, value in more.items():
            if isinstance(value, dict):
                add(into.setdefault(key, {}), value)
            elif isinstance(value, int) and key != "pid":
                into[key] = into.get(key, 0) + value

    for line in lines:
        found = re.search(r"^annulus(?:\[\d+\])?: (\{.*\})\s*$", line)
        if found:
            add(total, json.loads(found.group(1)))
    return total


def disturbed(runs, options):
    """Returns whether other processes used too much processor time during a pair of runs."""
    return any(run["sample"]["others_busy"] > options.quiet for run in runs if "sample" in run)


def start(cell, how, options, work):
    library = options.ceiling if how == CEILING else options.library
    rows = [row for row in downloads.table() if row.key == cell.server and row.key in tested.APPLICATIONS]
    if rows:
        folder = downloads.bring(rows[0])
        server = tested.Tested(
            rows[0], folder, options.annulus, how, library, work, cpus=options.server_cpu
        )
    else:
        server = Server(
            cell.server, how, library, work, cpus=options.server_cpu,
            binaries={"hyper": options.hyper, "annulus": options.annulus},
        )
    if how not in (PLAIN, AGAIN) and not server.has(library.resolve()):
        server.stop()
        raise RuntimeError("the library is not loaded")
    return server


def cell_runs(cell, options, work, hows=(PLAIN, PRELOADED)):
    """Runs a cell. Returns its runs and the library's counts. Several instances of each server run one after another,
    because the speed of the machine changes within seconds, and the memory layout differs between processes."""
    runs, said = [], {how: [] for how in hows}
    for instance in range(min(options.instances, options.repeats)):
        repeats = range(instance, options.repeats, options.instances)
        servers = {}
        try:
            for how in hows:
                servers[how] = start(cell, how, options, work)
            runs += instance_runs(cell, servers, repeats, options)
        except Missing as missing:
            print(f"{cell.key}: skipped: {missing}", file=sys.stderr)
            return [], {}
        except RuntimeError as failed:
            print(f"{cell.key}: FAILED: {failed}", file=sys.stderr)
            runs += [{"repeat": repeat, "how": how, "failed": str(failed)} for repeat in repeats for how in hows]
        finally:
            for how, server in servers.items():
                server.stop()
                # A process that a signal kills writes no counts.
                said[how] += server.lines()
    return runs, {how: counts(lines) for how, lines in said.items() if how not in (PLAIN, AGAIN)}


def instance_runs(cell, servers, repeats, options):
    """Runs pairs. A disturbed pair is repeated, as often as --patience allows."""
    kept, left, filled = [], options.patience, set()
    for repeat in repeats:
        runs = pair(cell, servers, repeat, options, filled)
        while disturbed(runs, options) and left:
            left -= 1
            runs = pair(cell, servers, repeat, options, filled)
        kept += runs
    return kept


def pair(cell, servers, repeat, options, filled):
    """Runs each server once, in random order."""
    runs, order = [], list(servers)
    random.shuffle(order)
    for how in order:
        run = {"repeat": repeat, "how": how}
        try:
            run["sample"] = load(cell, servers[how], options, how in filled)
            filled.add(how)
            if not servers[how].alive():
                raise Failed(f"the server ended unexpectedly: {servers[how].words()}")
        except (Failed, subprocess.TimeoutExpired) as failed:
            run["failed"] = str(failed)
            print(f"{cell.key} {how}: FAILED: {failed}", file=sys.stderr)
        runs.append(run)
    return runs


def row(cell, runs, how=PRELOADED):
    """Returns the medians of a cell, and of the ratios inside each repeat."""
    good = {(run["repeat"], run["how"]): run["sample"] for run in runs if "sample" in run}
    pairs = [
        (good[repeat, PLAIN], good[repeat, how])
        for repeat in sorted({repeat for repeat, _ in good})
        if (repeat, PLAIN) in good and (repeat, how) in good
    ]
    out = {
        "cell": cell.key, "server": cell.server, "load": cell.name, "connections": cell.connections,
        "pipeline": cell.pipeline, "how": how, "pairs": len(pairs),
        "failed": sum("failed" in run for run in runs),
    }
    for name in COLUMNS:
        out[f"{name}_without"] = median(plain[name] for plain, _ in pairs)
        out[f"{name}_with"] = median(own[name] for _, own in pairs)
        ratios = [own[name] / plain[name] for plain, own in pairs if own[name] is not None and plain[name]]
        out[f"{name}_ratio"] = median(ratios)
        out[f"{name}_ratio_low"], out[f"{name}_ratio_high"] = spread(ratios)
    out["limit_without"] = most([plain["limit"] for plain, _ in pairs])
    out["limit_with"] = most([own["limit"] for _, own in pairs])
    ratios = (out[f"{name}_ratio"] for name in ("requests_per_second", "p99_us", "cpu_us"))
    out["missed"] = missed(cell, *ratios, out["calls_with"]) if pairs else ["no pair of runs"]
    return out


def most(words):
    return max(set(words), key=words.count) if words else None


HEAD = (
    "| server and load | requests/s without | with | × (spread) | p99 µs without | with | × "
    "| CPU µs/req without | with | × | calls/req without | with | client | wanted |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n"
)


def table(rows, wanted):
    """Returns a table in Markdown; `wanted` returns the targets of a row."""
    text = HEAD
    for one in rows:
        if not one["pairs"]:
            text += f"| {one['cell']} | {' | '.join(['–'] * 12)} | all runs failed |\n"
            continue
        number = lambda name, form: "–" if one[name] is None else format(one[name], form)
        text += "| " + " | ".join([
            one["cell"],
            number("requests_per_second_without", ",.0f"), number("requests_per_second_with", ",.0f"),
            f"{one['requests_per_second_ratio']:.2f} ({one['requests_per_second_ratio_low']:.2f}–"
            f"{one['requests_per_second_ratio_high']:.2f})",
            number("p99_us_without", ",.0f"), number("p99_us_with", ",.0f"), number("p99_us_ratio", ".2f"),
            number("cpu_us_without", ".2f"), number("cpu_us_with", ".2f"), number("cpu_us_ratio", ".2f"),
            number("calls_without", ".3f"), number("calls_with", ".3f"), number("client_with", ".0%"),
            wanted.get(one["cell"], "") + (f" **missed: {'; '.join(one['missed'])}**" if one["missed"] else ""),
        ]) + " |\n"
    return text
