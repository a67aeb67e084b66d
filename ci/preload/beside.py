"""Measurements other than loads: start-up, memory of idle connections, sharing between workers, the usual tools."""

import re
import resource
import socket
import statistics
import struct
import subprocess
import time

from cells import Cell
from servers import PLAIN, PRELOADED, Missing, Server, environment, program

IDLE = 10_000
START_LIMIT_MS = 20.0
IDLE_LIMIT_BYTES = 2048


def everything(tools):
    yield "Start-up", start_up
    yield "Memory of idle connections", idle_memory
    yield "How two workers share connections", sharing
    if tools:
        yield "The usual tools (the client is the limit)", usual_tools


def series(one):
    """Returns the values of a measurement: unit, subject, and values."""
    for unit in ("times_ms", "bytes", "shares", "rates"):
        for name, values in one.get(unit, {}).items():
            parts = {"": values} if unit in ("times_ms", "shares") else values
            for how, numbers in parts.items():
                shown = ["+".join(map(str, number)) if isinstance(number, list) else number for number in numbers]
                yield unit, f"{name} {how}".strip(), shown


def start_up(options, work):
    """Measures the duration of a command that does nothing, and the time until a server responds."""
    times = {(what, how): [] for what in ("--version", "first PONG") for how in (PLAIN, PRELOADED)}
    redis = program("redis-server")
    for _ in range(max(10, options.repeats * 4)):
        for how in (PLAIN, PRELOADED):
            begin = time.perf_counter()
            env = environment(options.library, how, f"{work}/start.log")
            subprocess.run([redis, "--version"], env=env, check=True, capture_output=True)
            times["--version", how].append((time.perf_counter() - begin) * 1e3)
            begin = time.perf_counter()
            server = Server("redis", how, options.library, work, cpus=options.server_cpu)
            try:
                with socket.create_connection(("127.0.0.1", server.port)) as sock:
                    sock.sendall(b"PING\r\n")
                    assert sock.recv(7) == b"+PONG\r\n"
                times["first PONG", how].append((time.perf_counter() - begin) * 1e3)
            finally:
                server.stop()
    lines, missed = [], False
    for what in ("--version", "first PONG"):
        plain, own = (statistics.median(times[what, how]) for how in (PLAIN, PRELOADED))
        missed |= own - plain > START_LIMIT_MS
        lines.append(
            f"redis-server, until {what}: {plain:.1f} ms without, {own:.1f} ms with: {own - plain:+.1f} ms "
            f"(at most {START_LIMIT_MS:.0f}); medians of {len(times[what, PLAIN])}"
        )
    return {"text": lines, "missed": missed, "times_ms": {" ".join(key): value for key, value in times.items()}}


def slab_kib():
    with open("/proc/meminfo") as info:
        return sum(int(line.split()[1]) for line in info if line.startswith(("Slab:", "KernelStack:", "PageTables:")))


def idle_growth(kind, how, options, work, request, answer):
    """Measures the bytes of process and kernel per idle connection, after one request and its response."""
    server = Server(kind, how, options.library, work, cpus=options.server_cpu)
    socks = []
    try:
        def open_one():
            sock = socket.socket()
            # Closed with a reset, because the 28,000 ports of an address would not suffice if they had to wait.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.bind((f"127.0.0.{2 + len(socks) // 15000}", 0))
            sock.connect(("127.0.0.1", server.port))
            socks.append(sock)

        def ask(sock):
            sock.settimeout(20)
            sock.sendall(request)
            said = b""
            while not said.endswith(answer):
                more = sock.recv(65536)
                if not more:
                    raise RuntimeError(f"{kind} {how} closed an idle connection's first request")
                said += more

        # The first connections allocate shared memory, which is not counted.
        for _ in range(500):
            open_one()
            ask(socks[-1])
        time.sleep(0.3)
        begin = server.memory_kib(), slab_kib()
        for _ in range(IDLE):
            open_one()
            ask(socks[-1])
        time.sleep(0.5)
        end = server.memory_kib(), slab_kib()
        asked = [ask(sock) for sock in socks[:: len(socks) // 100]]
        held = len(asked)
    finally:
        for sock in socks:
            sock.close()
        server.stop()
    return tuple((after - before) * 1024 / IDLE for before, after in zip(begin, end, strict=True)) + (held,)


def idle_memory(options, work):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lines, figures, missed = [], {}, False
    http = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
    for kind, request, answer in (
        ("redis", b"PING\r\n", b"+PONG\r\n"),
        ("nginx", http, b"Hello, World!"),
        ("memcached", b"get x\r\n", b"END\r\n"),
    ):
        try:
            growth = {}
            for how in (PLAIN, PRELOADED):
                runs = [idle_growth(kind, how, options, work, request, answer) for _ in range(3)]
                growth[how] = tuple(statistics.median(column) for column in zip(*runs, strict=True))
        except Missing as missing:
            lines.append(f"{kind}: left out: {missing}")
            continue
        figures[kind] = growth
        ours = growth[PRELOADED][0] - growth[PLAIN][0]
        missed |= ours > IDLE_LIMIT_BYTES
        lines.append(
            f"{kind}, {IDLE:,} idle connections: {growth[PLAIN][0]:,.0f} bytes each without, "
            f"{growth[PRELOADED][0]:,.0f} with: {ours:+,.0f} of the library (at most {IDLE_LIMIT_BYTES}); "
            f"the kernel's memory, both ends of it: {growth[PLAIN][1]:,.0f} and {growth[PRELOADED][1]:,.0f}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return {"text": lines, "missed": missed, "bytes": figures}


def sharing(options, work):
    """Counts the share of 300 connections of each of two nginx workers under load."""
    lines, figures = [], {}
    for how in (PLAIN, PRELOADED):
        shares = []
        for _ in range(options.repeats):
            server = Server("nginx-2", how, options.library, work, cpus=f"{options.server_cpu},{options.client_cpu}")
            try:
                before = server.sockets_of_children()
                loading = subprocess.Popen(
                    [str(options.annulus), "bench", "net", "http", server.address, "--path", "/hello", "--connections",
                     "300", "--runtime", "1.5", "--warmup", "0.2"],
                    stdout=subprocess.DEVNULL,
                )
                time.sleep(1.2)
                now = server.sockets_of_children()
                loading.wait(60)
                counts = sorted(now[pid] - before.get(pid, 0) for pid in now)
                shares.append(counts)
            finally:
                server.stop()
        figures[how] = shares
        least = [counts[0] / max(1, sum(counts)) for counts in shares]
        lines.append(
            f"{how}: the worker with fewer has {statistics.median(least):.0%} of the connections "
            f"({', '.join(' + '.join(map(str, counts)) for counts in shares)})"
        )
    return {"text": lines, "shares": figures}


TOOLS = (
    Cell("redis", (), 50, "redis-benchmark GET", tool=("redis-benchmark", "-c", "50", "-n", "300000", "-t", "get")),
    Cell("redis", (), 500, "redis-benchmark GET", tool=("redis-benchmark", "-c", "500", "-n", "300000", "-t", "get")),
    Cell("redis", (), 50, "redis-benchmark GET P16",
         tool=("redis-benchmark", "-c", "50", "-n", "3000000", "-t", "get", "-P", "16")),
    Cell("nginx", (), 100, "wrk return 200", tool=("wrk", "-t1", "-c100", "-d2", "--latency")),
    Cell("nginx", (), 500, "wrk return 200", tool=("wrk", "-t1", "-c500", "-d2", "--latency")),
    Cell("nginx", (), 100, "wrk short connections",
         tool=("wrk", "-t1", "-c100", "-d2", "--latency", "-H", "Connection: close")),
)


def usual_tools(options, work):
    lines, figures = [], {}
    for cell in TOOLS:
        rates = {PLAIN: [], PRELOADED: []}
        try:
            tool = program(cell.tool[0])
            for _ in range(options.repeats):
                for how in rates:
                    server = Server(cell.server, how, options.library, work, cpus=options.server_cpu)
                    try:
                        rates[how].append(rate(tool, cell, server, options.client_cpu))
                    finally:
                        server.stop()
        except Missing as missing:
            lines.append(f"{cell.name}: left out: {missing}")
            continue
        plain, own = (statistics.median(rates[how]) for how in (PLAIN, PRELOADED))
        ratio = statistics.median(b / a for a, b in zip(rates[PLAIN], rates[PRELOADED], strict=True))
        figures[f"{cell.name} c{cell.connections}"] = rates
        lines.append(f"{cell.name} c{cell.connections}: {plain:,.0f} requests/s without, {own:,.0f} with ({ratio:.2f})")
    return {"text": lines, "rates": figures}


def rate(tool, cell, server, cpu):
    where = ["-h", "127.0.0.1", "-p", str(server.port), "-q"]
    if cell.tool[0] == "wrk":
        where = [f"http://{server.address}/hello"]
    command = ["taskset", "-c", cpu, tool, *cell.tool[1:], *where]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.findall(r"GET: ([\d.]+) requests per second|Requests/sec:\s*([\d.]+)", said)
    if not found:
        raise RuntimeError(f"{' '.join(command)}: no rate in {said[-300:]}")
    return float(next(part for part in found[-1] if part))
