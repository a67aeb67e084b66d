"""Installed servers: started on loopback with a generated configuration, with or without the preload library, inspected
through /proc, and stopped by process ID."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path

# A busy machine takes long to compile a Java program.
PATIENCE_S = 60.0
BODY_BYTES = 1024
NUMBERS = itertools.count(1)

# Ways to run a server: without the library, with it, or with it and SQPOLL.
PLAIN, PRELOADED, POLLED = "without", "with", "sqpoll"
# A second run without the library: the ratio if nothing differs.
AGAIN = "again"
# With another library, such as a minimal one, whose gain is what is possible.
CEILING = "ceiling"


def free_port():
    """Returns a port without a listener."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


# More settings of the library, for all servers that run with it.
SETTINGS = {}


def environment(library, how, log, more=None):
    """Returns the variables that a server gets in addition to this process's environment."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ANNULUS_", "LD_PRELOAD"))}
    if how not in (PLAIN, AGAIN):
        env |= {"LD_PRELOAD": str(library), "ANNULUS_STATS": "1", "ANNULUS_LOG": str(log), **SETTINGS}
    if how == POLLED:
        env["ANNULUS_SQPOLL"] = "1"
    return env | (more or {})


class Missing(Exception):
    """A program that is not installed, or lacks a feature."""


def program(name, *others):
    for candidate in (name, *others):
        found = shutil.which(candidate, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
        if found:
            return found
    raise Missing(f"{name} is not installed (apt install it)")


def write(folder, name, text):
    path = Path(folder) / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def nginx_configuration(folder, port, workers, cached, more_http="", more_main=""):
    """Returns a configuration with a location that responds from memory, and one with a file of 1 KiB."""
    cache = "open_file_cache max=1000 inactive=60s; open_file_cache_valid 60s;" if cached else ""
    (folder / "html").mkdir(exist_ok=True)
    write(folder / "html", "1k", bytes(33 + at % 90 for at in range(BODY_BYTES)))
    return f"""
daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
worker_rlimit_nofile 30000;
{more_main}
events {{ worker_connections 15000; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush off;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {cache}
    {more_http}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location = /hello {{ default_type text/plain; return 200 "Hello, World!"; }}
        location / {{ root {folder}/html; }}
    }}
}}
"""


def haproxy_configuration(port, mode, backend, checked=False):
    """Returns a configuration of a proxy for `backend`, or, without one, of a server that responds itself. `checked`:
    with two threads and health checks, and with HAProxy's default of giving up new privileges in each thread."""
    answer = 'http-request return status 200 content-type text/plain string "Hello, World!"'
    check = " check inter 100ms" if checked else ""
    behind = f"server one 127.0.0.1:{backend} maxconn 4000{check}" if backend else ""
    return f"""
global
    nbthread {2 if checked else 1}
    {"" if checked else "insecure-setuid-wanted"}
    maxconn 8000
defaults
    mode {mode}
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    {"option http-keep-alive" if mode == "http" else ""}
    {"http-reuse always" if mode == "http" else ""}
frontend in
    bind 127.0.0.1:{port} backlog 4096
    {answer if not backend else "default_backend out"}
{"backend out" if backend else ""}
    {behind}
"""


NODE = """
const http = require('http');
const server = http.createServer((request, response) => {
    response.writeHead(200, {'Content-Type': 'text/plain', 'Content-Length': 13});
    response.end('Hello, World!');
});
server.keepAliveTimeout = 3600000;
// Exits in order, so that the library writes its counts.
process.on('SIGTERM', () => process.exit(0));
server.listen(Number(process.argv[2]), '127.0.0.1', 4096);
"""


class Server:
    """A running server. `kind` names the server, `how` the way to run it."""

    def __init__(self, kind, how, library, work, cpus="0", more_env=None, options=(), binaries=None):
        self.kind, self.how = kind, how
        self.port = free_port()
        self.folder = Path(work) / f"{kind}-{how}-{next(NUMBERS)}"
        self.folder.mkdir(parents=True)
        self.log = self.folder / "annulus.log"
        self.behind = None
        self.binaries = binaries or {}
        env = environment(library, how, self.log, more_env)
        command = self.command(list(options))
        if cpus:
            command = ["taskset", "-c", cpus, *command]
        self.said = open(self.folder / "said", "wb")
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said, start_new_session=True
        )
        try:
            self.wait()
        except Exception:
            self.stop()
            raise

    def command(self, options):
        port, folder = str(self.port), self.folder
        match self.kind:
            case "redis":
                return [
                    program("redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                    "--protected-mode", "no", "--daemonize", "no", "--dir", str(folder), "--maxclients", "12000",
                    "--tcp-backlog", "4096", *options,
                ]
            case "memcached":
                return [
                    program("memcached"), "-l", "127.0.0.1", "-p", port, "-U", "0", "-u", "root", "-t", "1",
                    "-m", "1024", "-c", "12000", "-b", "4096", *options,
                ]
            case "nginx" | "nginx-uncached" | "nginx-2":
                text = nginx_configuration(folder, port, 2 if self.kind == "nginx-2" else 1, self.kind == "nginx")
                conf = write(folder, "nginx.conf", text)
                return [program("nginx"), "-p", str(folder), "-c", str(conf), *options]
            case "haproxy" | "haproxy-http" | "haproxy-tcp" | "haproxy-checked":
                backend = None
                if self.kind != "haproxy":
                    self.behind = Server("nginx", PLAIN, None, self.folder)
                    backend = self.behind.port
                mode = "tcp" if self.kind == "haproxy-tcp" else "http"
                conf = write(folder, "haproxy.cfg", haproxy_configuration(port, mode, backend, self.kind == "haproxy-checked"))
                return [program("haproxy"), "-f", str(conf), "-db", *options]
            case "node":
                return [program("node"), str(write(folder, "server.js", NODE)), port, *options]
            case "hyper" | "hyper-2":
                binary = self.binaries.get("hyper")
                if not binary:
                    raise Missing("hyper: give the path of annulus-hyper's example hyper_hello with --hyper")
                threads = "2" if self.kind == "hyper-2" else "1"
                return [str(binary), f"127.0.0.1:{port}", threads, *options]
            case "tokio-echo":
                return [str(self.binaries["annulus"]), "bench", "net-server", "tokio", "--addr", f"127.0.0.1:{port}"]
        raise Missing(f"unknown server {self.kind}")

    @property
    def pid(self):
        return self.process.pid

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def words(self):
        return (self.folder / "said").read_text(errors="replace")[-2000:]

    def wait(self):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.kind} {self.how} ended with {self.process.returncode}: {self.words()}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.005)
        raise RuntimeError(f"{self.kind} {self.how} does not listen after {PATIENCE_S} s: {self.words()}")

    def pids(self):
        """Returns the process and its children."""
        found, asked = [self.pid], 0
        while asked < len(found):
            try:
                for task in os.listdir(f"/proc/{found[asked]}/task"):
                    children = Path(f"/proc/{found[asked]}/task/{task}/children").read_text()
                    found += [int(child) for child in children.split()]
            except OSError:
                pass
            asked += 1
        return found

    def memory_kib(self):
        """Returns the memory of the process and its children, each page once, without pages of files: the share in those
        of a library changes with every other process that maps it."""
        total = 0
        for pid in self.pids():
            try:
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            total += sum(map(int, re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+)", text, re.M)))
        return total

    def cpu_ticks(self):
        """Returns the processor time of the process and its children, in ticks."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                # proc_pid_stat(5): `utime` and `stime` are the fields 14 and 15; the second is the name, in brackets.
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(words[11]) + int(words[12])
        return ticks

    def descriptors(self):
        """Returns what each process has open: for each process ID, how many descriptors of each kind."""
        found = {}
        for pid in self.pids():
            kinds = found[pid] = Counter()
            try:
                names = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                continue
            for name in names:
                with contextlib.suppress(OSError):
                    # Inode numbers differ: "socket:[123]" is a socket.
                    kinds[re.sub(r":\[\d+\]$", "", os.readlink(f"/proc/{pid}/fd/{name}"))] += 1
        return found

    def threads(self):
        names = []
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").glob("*/comm"):
                names.append(task.read_text().strip())
        return names

    def sockets_of_children(self):
        """Returns the number of connections of each worker."""
        counts = {}
        for pid in self.pids()[1:]:
            links = []
            for entry in os.listdir(f"/proc/{pid}/fd"):
                try:
                    links.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
                except OSError:
                    pass
            counts[pid] = sum(link.startswith("socket:") for link in links)
        return counts

    def has(self, library):
        """Returns whether every process of the server has loaded the library. Children that have ended are left out."""
        maps = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                maps.append(Path(f"/proc/{pid}/maps").read_text())
        # A child that its parent has not waited for has no maps.
        return all(str(library) in text for text in maps if text)

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        """Stops the server, with SIGKILL after a timeout. Returns the library's log."""
        ended = self.process.poll()
        if ended is None:
            # HAProxy is killed by SIGTERM, and would write no counts.
            self.process.send_signal(signal.SIGUSR1 if self.kind.startswith("haproxy") else signal.SIGTERM)
            try:
                ended = self.process.wait(5)
            except subprocess.TimeoutExpired:
                for pid in self.pids():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                ended = self.process.wait()
        self.said.close()
        if self.behind:
            self.behind.stop()
        return ended

    def lines(self):
        return self.log.read_text().splitlines() if self.log.exists() else []
