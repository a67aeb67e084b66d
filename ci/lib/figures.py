"""What the benchmarks of servers have in common: the machine that they ran on, how many runs become one figure, and
where figures go."""

import os
import platform
import statistics
import subprocess
from pathlib import Path

# How a table in Markdown is called.
MARKDOWN = "md"
# With at least this number of ratios, the spread is that of the middle half.
ENOUGH = 8


def machine():
    """The kernel, the processors, and what the kernel does against their flaws."""
    with open("/proc/cpuinfo") as info:
        names = [line.split(":")[1].strip() for line in info if line.startswith("model name")]
    name = names[0] if names else "unknown"
    return f"Linux {platform.release()}; {os.cpu_count()} processors, {name}; mitigations: {mitigations()}"


def mitigations():
    """What the kernel does against each flaw of the processors that it has to do something about."""
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


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def spread(ratios):
    """The quartiles, or the extremes where there are few. A host that halts for a moment makes extremes of two digits,
    which say nothing of the servers."""
    if len(ratios) < ENOUGH:
        return min(ratios, default=None), max(ratios, default=None)
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, high

SAMPLE_COLUMNS = (
    "requests_per_s", "p50_us", "p99_us", "p99.9_us", "cpu_us_per_request", "calls_per_request", "client_busy",
    "others_busy", "not_counted",
)


def of_run(run):
    """The figures of one run of `annulus bench net`, in the order of SAMPLE_COLUMNS."""
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
    """A figure for a file: six digits that matter, nothing for a figure that is missing."""
    if value is None:
        return ""
    if isinstance(value, float):
        # No exponents: spreadsheets and people read these files, too.
        digits = f"{float(f'{value:.6g}'):.12f}".rstrip("0").rstrip(".")
        return digits or "0"
    return " ".join(str(value).split())


def save(folder, head, columns, runs, table=None, name="results"):
    """Writes one line per run as TSV, below lines of `head` that begin with #, and the table in Markdown, if there is a
    folder to write them to."""
    if not folder:
        return
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"# {key}: {short(value)}" for key, value in head]
    lines += ["\t".join(short(cell) for cell in cells) for cells in (columns, *runs)]
    (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    if table is not None:
        (folder / f"{name}.{MARKDOWN}").write_text(table)
