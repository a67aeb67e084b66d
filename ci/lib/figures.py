"""Common code of the benchmarks: options, description of the machine, statistics, and output files."""

import argparse
import datetime
import json
import os
import platform
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# File name of the table in Markdown.
MARKDOWN = "md"
# The minimum number of ratios for quartiles; with fewer, the spread is the extremes.
ENOUGH = 8


def machine():
    """Returns the kernel, the processors, and the active mitigations."""
    with open("/proc/cpuinfo") as info:
        names = [line.split(":")[1].strip() for line in info if line.startswith("model name")]
    name = names[0] if names else "unknown"
    return f"Linux {platform.release()}; {os.cpu_count()} processors, {name}; mitigations: {mitigations()}"


def mitigations():
    """Returns the mitigation of each vulnerability that affects the processors."""
    found = []
    for file in sorted(Path("/sys/devices/system/cpu/vulnerabilities").glob("*")):
        text = file.read_text().strip()
        if text.startswith(("Mitigation: ", "Vulnerable")):
            found.append(f"{file.name} ({text.removeprefix('Mitigation: ')})")
    return ", ".join(found) or "none"


def commit():
    folder = Path(__file__).resolve().parent
    said = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=folder)
    return said.stdout.strip() or "unknown"


def facts():
    """Returns the machine, the command, the commit, and the time."""
    return {
        "machine": machine(), "command": shlex.join(sys.argv), "commit": commit(),
        "started": datetime.datetime.now().isoformat(timespec="seconds"),
    }


def parser(doc):
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def regex(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def add_cells(options, rounds="rounds"):
    """Adds the options of a benchmark with cells, whose servers run on one processor and the load on another."""
    options.add_argument(
        "--quiet", type=float, default=0.1, metavar="SHARE",
        help=f"repeat {rounds} in which other processes used more of a processor",
    )
    options.add_argument("--patience", type=int, default=10, help=f"maximum number of repeated {rounds} per cell")
    options.add_argument("--server-cpu", default="0")
    options.add_argument("--client-cpu", default="1")
    options.add_argument("--only", type=regex, metavar="REGEX", default="", help="cells whose name matches")
    options.add_argument("--out", type=Path, help="folder for the figures: a line per run (TSV), and a table")


def undisturbed(options, count, one_round, busy):
    """Makes `count` rounds. Repeats those in which other processes were busy, as often as --patience allows. `busy` is
    the share of a processor that they used in a run, of the values that a round returns."""
    kept, patience = [], options.patience
    while len(kept) < count:
        runs = one_round()
        if patience > 0 and any(busy(run) > options.quiet for run in runs.values()):
            patience -= 1
        else:
            kept.append(runs)
    return kept


def need(options, path, build):
    """Ends with an error if a program was not built."""
    if not path.is_file():
        options.error(f"{path} does not exist; build it with `{build}`, or give its path")


def wanted(cell):
    """Returns the targets of a cell."""
    parts = [f"≥ {cell.least:.2f}"] if cell.least else []
    parts += [f"p99 ≤ {cell.p99:.2f}"] if cell.p99 else []
    parts += [f"CPU ≤ {cell.cpu:.2f}"] if cell.cpu else []
    parts += [f"calls ≤ {cell.calls:.2f}"] if cell.calls else []
    return ", ".join(parts)


def missed(cell, speed, p99, cpu, calls):
    """Returns the targets that a cell misses: with the ratios of speed, p99 and CPU time, and the calls per request."""
    said = []
    if cell.least and (speed is None or speed < cell.least):
        said.append("no ratio" if speed is None else f"{speed:.2f} < {cell.least:.2f}")
    if cell.p99 and p99 and p99 > cell.p99:
        said.append(f"p99 {p99:.2f} > {cell.p99:.2f}")
    if cell.cpu and cpu and cpu > cell.cpu:
        said.append(f"CPU {cpu:.2f} > {cell.cpu:.2f}")
    if cell.calls and calls and calls > cell.calls:
        said.append(f"{calls:.3f} calls > {cell.calls:.2f}")
    return said


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def spread(ratios):
    """Returns the quartiles, or the extremes of few ratios. A short halt of the host causes extremes that say nothing
    about the servers."""
    if len(ratios) < ENOUGH:
        return min(ratios, default=None), max(ratios, default=None)
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, high


def samples(report):
    """Returns {(variant, depth): {repeat: sample}} of a report of `annulus bench file`."""
    found = {}
    for run in report["runs"]:
        if run["outcome"]["kind"] == "measured":
            found.setdefault((run["variant"], run["depth"]), {})[run["repeat"]] = run["outcome"]
    return found


def ratio(ours, base, column):
    """Returns the median of the ratio inside a repeat, and its extremes; `None` without a common repeat."""
    ratios = [run[column] / base[repeat][column] for repeat, run in ours.items() if repeat in base]
    return (statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def net_round(annulus, words, runtime, server_cpu, client_cpu):
    """Runs each server of an `annulus bench net` once, in random order. Returns the runs by server."""
    with tempfile.TemporaryDirectory(prefix="annulus-bench-") as folder:
        file = Path(folder) / "round.json"
        words = [annulus, "bench", "net", *words, "--repeats", 1, "--runtime", runtime]
        words += ["--seed", random.randrange(10**6), "--server-cpu", server_cpu, "--cpu", client_cpu, "--json", file]
        command = [str(word) for word in words]
        done = subprocess.run(command, capture_output=True, text=True)
        if not file.is_file():
            raise SystemExit(f"{shlex.join(command)} exited with {done.returncode}: {done.stderr or done.stdout}")
        return {run["variant"]: run for run in json.loads(file.read_text())["runs"]}


def net_figures(run):
    """Returns the figures of one run of `annulus bench net` that has a sample."""
    sample, server = run["sample"], run["sample"]["server"] or {}
    return {
        "per_second": sample["requests_per_second"], "p99_us": sample["latency_uncorrected"]["p99_us"],
        "cpu_us": server.get("cpu_us_per_request"), "calls": server.get("syscalls_per_request"),
        "client": max(sample["client_cpu_share"], default=None),
    }


SAMPLE_COLUMNS = (
    "requests_per_s", "p50_us", "p99_us", "p99.9_us", "cpu_us_per_request", "calls_per_request", "client_busy",
    "others_busy", "not_counted",
)


def of_run(run):
    """Returns the figures of one run of `annulus bench net`, in the order of SAMPLE_COLUMNS."""
    sample = run["sample"]
    if not sample:
        return [None] * (len(SAMPLE_COLUMNS) - 1) + [run["reason"] or "no figures"]
    server, latency = sample["server"] or {}, sample["latency_uncorrected"]
    return [
        sample["requests_per_second"], latency["p50_us"], latency["p99_us"], latency["p99_9_us"],
        server.get("cpu_us_per_request"), server.get("syscalls_per_request"),
        max(sample["client_cpu_share"], default=None), sample["others_busy"],
        "; ".join(map(str, sample["faults"])) or run["reason"],
    ]


def short(value):
    """Formats a figure with six significant digits; an empty string for a missing one."""
    if value is None:
        return ""
    if isinstance(value, float):
        # No exponents, so that spreadsheets and people can read the files.
        digits = f"{float(f'{value:.6g}'):.12f}".rstrip("0").rstrip(".")
        return digits or "0"
    return " ".join(str(value).split())


def save(folder, head, columns, runs, table=None, name="results"):
    """Writes the table in Markdown and a TSV file to the folder, if there is one. The TSV file has `head` in lines that
    begin with #, and a line per run."""
    if not folder:
        return
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"# {key}: {short(value)}" for key, value in head]
    lines += ["\t".join(short(cell) for cell in cells) for cells in (columns, *runs)]
    (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    if table is not None:
        (folder / f"{name}.{MARKDOWN}").write_text(table)
