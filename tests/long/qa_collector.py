"""A stand-in for the OpenTelemetry collector of the QA suite L0_trace: OTLP into `collected_traces.json`.

The suite downloads the collector, and compares the lines that its file exporter writes.
"""

import base64
import json
import signal
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PORT: Final = 10000
_FILE: Final = Path("collected_traces.json")
_IDS: Final = ("traceId", "spanId", "parentSpanId")


class Receiver(BaseHTTPRequestHandler):
    """Writes each export as one line."""

    def do_POST(self) -> None:
        """Receive an export."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        document = MessageToDict(ExportTraceServiceRequest.FromString(body), use_integers_for_enums=True)
        for span in _spans(document):
            span.update({key: base64.b64decode(span.get(key, "")).hex() for key in _IDS})
        with _FILE.open("a") as file:
            file.write(json.dumps(document, separators=(",", ":")) + "\n")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _spans(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in document.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            yield from scope.get("spans", ())
            for span in scope.get("spans", ()):
                yield from span.get("links", ())


if __name__ == "__main__":
    _FILE.write_bytes(b"")  # as the collector makes it, before anything is exported
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"receiving on {PORT}", file=sys.stderr)
    HTTPServer(("0.0.0.0", PORT), Receiver).serve_forever()
