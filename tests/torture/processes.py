"""A SuperLink and SuperNodes as processes on loopback, each in a group of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import adadps

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Federation:
    """Starts processes, and kills them all at the end. Everything is written to ``folder``."""

    def __init__(self, folder):
        self.folder, self.started = Path(folder), {}
        self.port = free_port()
        home = self.folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        sources = str(Path(adadps.__file__).parents[1])
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": sources,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "no_proxy": "*",
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self.started):
            self.kill(name)

    def start(self, name, *command):
        log = (self.folder / f"{name}.log").open("ab")
        self.started[name] = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()

    def kill(self, name):
        """The process and all that it has started, at once."""
        process = self.started.pop(name)
        for group in {process.pid, *_groups_below(process.pid)}:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()

    def start_link(self, *more):
        quiet = ("--insecure", "--disable-runtime-dependency-installation")
        database = str(self.folder / "link.db")
        where = ("--host", "127.0.0.1", "--port", str(self.port), "--database", database)
        self.start("link", "flower-superlink", *quiet, *where, *more)
        self.wait(lambda: _listens(self.port), "the SuperLink to listen")

    def start_node(self, number, key="partition-id"):
        link, own = f"127.0.0.1:{self.port}", str(free_port())
        where = ("--superlink", link, "--port", own, "--node-config", f"{key}={number}")
        self.start(f"node-{number}", "flower-supernode", "--insecure", *where)

    def submit(self, config, *more):
        """Start the app; the number of the run is in what it prints."""
        given = " ".join(f"{name}={_toml(value)}" for name, value in config.items())
        self._flwr("run", str(APP), "loopback", "--run-config", given, *more)

    def server_log(self):
        """What the ServerApp of the last run has said."""
        runs = re.findall(r"Created run (\d+)", (self.folder / "link.log").read_text("utf-8"))
        return self._flwr("log", runs[-1], "loopback", "--show") if runs else ""

    def _flwr(self, *command):
        done = subprocess.run(
            ["flwr", *command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait(self, condition, what, seconds=600):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, f"waited in vain for {what}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self):
        """The last lines of every process."""
        found = []
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-25:]
            found += [f"--- {path.name}", *(re.sub(r"\x1b\[\d+m", "", line) for line in lines)]
        return "\n".join(found)


def _toml(value):
    return f'"{value}"' if isinstance(value, str | Path) else value


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _groups_below(pid):
    """Groups of all descendants, whoever has given them a session of their own."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = (int(fields[1]), int(fields[2]))
    known, grew = {pid}, True
    while grew:
        more = {child for child, (parent, _) in parents.items() if parent in known} - known
        known, grew = known | more, bool(more)
    return {parents[child][1] for child in known if child in parents}
