"""Public homes of data sets on the loopback: a small web server that can also misbehave."""

import io
import re
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Home:
    """What it serves by path, and how it misbehaves."""

    address: str
    files: dict[str, bytes]
    breaks_after: int | None = None
    resumes: bool = True
    says_length: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def url(self, original):
        return f"{self.address}/{original.name}"


@contextmanager
def home_with(files):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            wanted, name = self.headers.get("Range"), self.path.lstrip("/")
            home.asked.append((name, wanted))
            if name not in home.files:
                self.send_error(404)
                return
            content = home.files[name]
            begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted else 0
            if wanted and home.resumes and begin >= len(content):
                self.send_error(416)
                return
            if wanted and home.resumes:
                self.send_response(206)
                last = len(content) - 1
                self.send_header("Content-Range", f"bytes {begin}-{last}/{len(content)}")
                content = content[begin:]
            else:
                self.send_response(200)
            if home.says_length:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: home.breaks_after])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    home = Home(f"http://127.0.0.1:{server.server_port}", dict(files))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield home
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tar_of(files, kind="gz", odd=()):
    """An archive of texts or bytes by name; ``odd`` are ready-made members without content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{kind}") as tar:
        for member in odd:
            tar.addfile(member)
        for name, content in files.items():
            held = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(held)
            tar.addfile(member, io.BytesIO(held))
    return packed.getvalue()


def left_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
