"""Answers with the page of a GPU that was made up, so that Prometheus has something to scrape.

Counters grow, as a real server's do: a rate of nothing would prove nothing."""

import http.server
import threading
import time

from metrics_page import Family


def write_page(families: dict[str, Family], growth: float) -> str:
    lines = []
    for family in families.values():
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        factor = growth if family.kind == "counter" else 1
        for name, labels, value in family.series:
            written = ",".join(f'{label}="{is_}"' for label, is_ in labels.items())
            lines.append(f"{name}{{{written}}} {value * factor}")
    return "\n".join(lines) + "\n"


class GpuServer:
    """A server of that page on a port that is free."""

    def __init__(self, families: dict[str, Family]):
        began = time.monotonic()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = write_page(families, 1 + time.monotonic() - began).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
