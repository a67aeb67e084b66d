"""What the benchmarks of servers have in common: the machine that they ran on, how many runs become one figure, and
where figures go."""

import json
import os
import platform
import statistics
import subprocess
from pathlib import Path

# How a table in Markdown is called.
MARKDOWN = "md"
# From so many ratios on the spread is that of the half in the middle.
ENOUGH = 8


def machine():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":")[1].strip() for line in info if line.startswith("model name")]
    return f"Linux {platform.release()}; {os.cpu_count()} processors, {names[0] if names else 'unknown'}"


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


def save(folder, report, table):
    """Writes the report and its table, if there is a folder to write them to."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(report, indent=1) + "\n")
        (folder / f"results.{MARKDOWN}").write_text(table)
