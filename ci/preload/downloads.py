"""The table of tested programs, and its packages: Debian's are installed, others are downloaded into a cache folder."""

import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from servers import Missing, program

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "crates/annulus-cli/src/run/programs.tsv"
PYTHON = "/usr/bin/python3"
# The table has the names of x86-64. ci/lib/arm64/run downloads the packages of another processor here.
MACHINE = os.environ.get("PROGRAMS_MACHINE", platform.machine())
FOREIGN = MACHINE != platform.machine()
CACHE = ROOT / "target/programs" / MACHINE
NAMES = {"bun-linux-x64": "bun-linux-aarch64", "linux-x64": "linux-arm64"} if MACHINE == "aarch64" else {}
# Options of pip.
WHEELS = [f"--platform=manylinux{tag}_{MACHINE}" for tag in ("2014", "_2_28", "_2_34") if FOREIGN]
# Time limit of a download, which a slow registry may need.
PATIENCE_S = 300
# The Debian package of each client.
CLIENTS = {"npm": "npm", "mvn": "maven", "javac": "default-jdk-headless"}
APT = threading.Lock()
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>annulus</groupId><artifactId>programs</artifactId><version>1</version><dependencies>{}</dependencies></project>
"""


@dataclass
class Row:
    """A line of the table. All its packages are of one source."""

    key: str
    name: str
    version: str
    packages: list
    commands: list
    share: float
    ci: bool
    arm64: bool

    @property
    def source(self):
        return self.packages[0].partition(":")[0] if self.packages else None


def native(text):
    """Returns a text of the table with the package names of this processor."""
    for name, other in NAMES.items():
        text = text.replace(name, other)
    return text


def table():
    lines = [line.split("\t") for line in native(TABLE.read_text()).splitlines() if not line.startswith("#")]
    return [
        Row(key, name, version, packages.split(), commands.split(), float(share), ci == "ci", arm64 == "arm64")
        for key, name, version, packages, commands, share, ci, arm64 in lines
    ]


def apt(*packages):
    """Installs Debian packages on a build machine (CI=true, root). Returns whether this is one."""
    if os.environ.get("CI") != "true" or os.getuid() != 0 or not shutil.which("apt-get"):
        return False
    apt_get = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=120"]
    with APT:
        for command in (["update"], ["install", "--no-install-recommends", *packages]):
            subprocess.run(apt_get + command, stdout=subprocess.DEVNULL)
    return True


def need(command):
    """Installs the Debian package of a client if the client is missing."""
    if not shutil.which(command) and not (apt(CLIENTS[command]) and shutil.which(command)):
        raise Missing(f"{command} is not installed; install the package {CLIENTS[command]}")


def run(command, what):
    """Runs a package client."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise Missing(f"no download of {what} within {PATIENCE_S} s; try again") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Missing(f"cannot download {what}: {''.join(last)}")


def installed(package):
    """Returns the version of an installed Debian package."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package],
                          capture_output=True, text=True)
    status, _, version = done.stdout.partition(" ")
    return version if status == "installed" else None


def debian(wanted):
    """Checks the installed versions, and installs missing packages on a build machine."""
    if not shutil.which("dpkg-query"):
        raise Missing("no dpkg here; the table names packages of Debian")
    absent = [package for package, _ in wanted if not installed(package)]
    if absent:
        apt(*absent)
    for package, version in wanted:
        found = installed(package)
        if not found:
            raise Missing(f"{package} is not installed; install the package")
        if not found.startswith(version):
            raise Missing(f"{package} is {found} instead of {version}; install that version, or change the table")


def pypi(wanted, folder):
    """Installs wheels for Debian's Python, with the pip of the Python that runs this script."""
    program(PYTHON)
    version = subprocess.run([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                             check=True, capture_output=True, text=True).stdout.strip()
    run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder),
         "--only-binary", ":all:", "--python-version", version, *WHEELS,
         *(f"{name}=={version}" for name, version in wanted)],
        " ".join(name for name, _ in wanted))


def npm(wanted, folder):
    need("npm")
    names = [f"{name}@{version}" for name, version in wanted]
    # Without it npm refuses a package for another processor.
    force = ["--force"] if FOREIGN else []
    run(["npm", "install", "--silent", "--no-audit", "--no-fund", *force, "--prefix", str(folder), *names],
        " ".join(names))


def maven(wanted, folder):
    """Copies the artefacts and their dependencies. A third part of a name is the classifier."""
    need("mvn")
    need("javac")
    tags = ("groupId", "artifactId", "classifier")
    artefacts = [
        "".join(f"<{tag}>{text}</{tag}>" for tag, text in (*zip(tags, name.split(":"), strict=False),
                                                          ("version", version)))
        for name, version in wanted
    ]
    pom = folder / "pom.xml"
    pom.write_text(POM.format("".join(f"<dependency>{one}</dependency>" for one in artefacts)))
    run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"],
        " ".join(name for name, _ in wanted))


SOURCES = {"debian": debian, "pypi": pypi, "npm": npm, "maven": maven}


def bring(row):
    """Returns the folder of the row's downloads."""
    source = row.source
    if not source:
        return CACHE
    named = [package.removeprefix(f"{source}:") for package in row.packages]
    wanted = [tuple(package.split("=", 1)) for package in named]
    if source == "debian":
        debian(wanted)
        return CACHE
    folder = CACHE / re.sub(r"[^\w.=-]+", "-", " ".join(named))
    if not folder.exists():
        # Renamed when it is whole, so that an interrupted download is repeated.
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        SOURCES[source](wanted, partial)
        partial.rename(folder)
    return folder


def bring_all(rows):
    """Returns the folder of each row's downloads, or its `Missing`. The sources are asked in parallel."""
    brought = {}

    def bring_from(source):
        for row in (row for row in rows if row.source == source):
            try:
                brought[row.key] = bring(row)
            except Missing as error:
                brought[row.key] = error

    with ThreadPoolExecutor() as pool:
        list(pool.map(bring_from, {row.source for row in rows}))
    return brought
