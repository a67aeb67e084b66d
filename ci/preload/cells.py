"""The measured cells: a server, a load, and the targets of its ratios (docs/reference/preload.md)."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Cell:
    server: str
    load: tuple
    connections: int
    name: str
    pipeline: int = 1
    # The minimum ratio of requests per second, with the library to without; None: no target.
    least: float = None
    # The maximum ratios of p99, of processor time and of system calls per request.
    p99: float = None
    cpu: float = None
    calls: float = None
    tool: tuple = ()
    words: dict = field(default_factory=dict, compare=False)

    @property
    def key(self):
        pipelined = f" P{self.pipeline}" if self.pipeline > 1 else ""
        return f"{self.server} {self.name} c{self.connections}{pipelined}"


def redis():
    least = {1: 0.98, 50: 1.2, 300: None, 500: 1.2, 1000: 1.2}
    for size, name in (("3", "3 B"), ("1k", "1 KiB")):
        for command in ("get", "set"):
            load = ("redis", "--command", command, "--size", size, "--fill")
            shown = f"{command.upper()} {name}"
            for connections in least:
                if connections in (1, 300) and size == "1k":
                    continue
                yield Cell(
                    "redis", load, connections, shown, least=least[connections],
                    p99=0.65 if connections == 500 else None, calls=0.05 if connections == 300 else None,
                )
            for connections, wanted in ((50, 1.0), (500, 1.10)):
                yield Cell("redis", load, connections, shown, pipeline=16, least=wanted)


def nginx():
    hello = ("http", "--path", "/hello")
    file = ("http", "--path", "/1k")
    for connections, wanted in ((1, 0.98), (50, None), (100, 1.25), (300, None), (500, 1.25), (1000, 1.06)):
        yield Cell(
            "nginx", hello, connections, "return 200", least=wanted, calls=0.05 if connections == 300 else None
        )
    yield Cell("nginx", file, 100, "1 KiB file", least=1.8)
    yield Cell("nginx-uncached", file, 100, "1 KiB file, opened each time")
    yield Cell("nginx", hello, 50, "return 200", pipeline=16, least=5.0)
    yield Cell("nginx", (*hello, "--reconnect"), 100, "return 200, short connections", least=1.0, cpu=0.93)
    for connections in (100, 500):
        yield Cell("nginx-2", hello, connections, "return 200, two workers", least=1.06)
    yield Cell("nginx-2", (*hello, "--reconnect"), 100, "short connections, two workers", least=1.0)


def memcached():
    for size, name in (("3", "3 B"), ("1k", "1 KiB")):
        get = ("memcached", "--command", "get", "--size", size, "--fill")
        for connections in (50, 300, 500) if size == "3" else (50, 500):
            yield Cell(
                "memcached", get, connections, f"get {name}", least=1.1 if connections != 300 else None,
                calls=0.05 if connections == 300 else None,
            )
        yield Cell("memcached", get, 50, f"get {name}", pipeline=16, least=3.0)
    put = ("memcached", "--command", "set", "--size", "3", "--fill")
    yield Cell("memcached", put, 50, "set 3 B")
    yield Cell("memcached", put, 50, "set 3 B", pipeline=16)


def few():
    """Around the number of connections with which a set gets its ring."""
    for connections in (2, 4, 8, 16):
        yield Cell("redis", ("redis", "--command", "get", "--size", "3", "--fill"), connections, "GET 3 B", least=0.98)
        yield Cell("memcached", ("memcached", "--command", "get", "--size", "3", "--fill"), connections, "get 3 B",
                   least=0.98)
        yield Cell("nginx", ("http", "--path", "/hello"), connections, "return 200", least=0.98)


def others():
    root = ("http", "--path", "/hello")
    for connections in (50, 300):
        yield Cell("haproxy", root, connections, "answers by itself", least=1.2)
        yield Cell("haproxy-http", root, connections, "HTTP proxy of nginx")
        yield Cell("haproxy-tcp", root, connections, "TCP proxy of nginx")
        yield Cell("node", root, connections, "http.createServer")
        yield Cell("hyper", root, connections, "hyper, one thread")
    yield Cell("hyper-2", root, 300, "hyper, two threads")
    yield Cell("node", root, 50, "http.createServer", pipeline=16)
    yield Cell("hyper", root, 50, "hyper, one thread", pipeline=16)
    for connections in (50, 300):
        yield Cell("tokio-echo", ("echo", "--size", "128"), connections, "tokio echo, one thread")


def applications():
    """Programs of the table of tested programs."""
    for server in ("asyncio", "uvloop", "netty-nio", "netty-epoll"):
        yield Cell(server, ("echo", "--size", "128"), 50, "echo", least=1.0)
    for server in ("aiohttp", "uvicorn", "gevent", "node26", "undertow"):
        yield Cell(server, ("http", "--path", "/"), 50, "HTTP", least=1.0)


def every():
    return [*redis(), *nginx(), *memcached(), *few(), *others(), *applications()]


def of_keys(number):
    """Returns the loads that use keys, with this number of keys. With one key (the default of redis-benchmark) the
    lookup costs almost nothing. With 100,000 keys (the default here) it misses the caches."""
    for cell in every():
        if "--fill" in cell.load:
            shown = f"{cell.name}, {number} key{'s' if number != 1 else ''},"
            yield replace(cell, load=(*cell.load, "--keys", str(number)), name=shown)
