"""A compressed network behind a port: `python examples/onnx_server.py [PORT]`.

Compresses, writes one ONNX file and answers requests with onnxruntime. The server needs neither torch nor
this package: only the file. With a PORT it stays; without, it asks itself one question and stops.

    curl --data '[[[[0.1, 0.2, …]]]]' http://localhost:8000
"""

import json
import sys
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import hope


def write(path: Path) -> tuple[torch.nn.Module, torch.Tensor]:
    """From a trained model (here one that only stands for it) to the file."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()),
        *(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10)),
    ).eval()
    example = torch.randn(1, 1, 8, 8)
    encoding = hope.encode(model, example, params=0.5)
    encoding.export_onnx(path)  # batches of any size, checked with onnxruntime
    return encoding.model, example


def server(path: Path, port: int) -> HTTPServer:
    """Answers a JSON array, a batch of inputs, with one of outputs."""
    session = onnxruntime.InferenceSession(str(path))
    name = session.get_inputs()[0].name

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            inputs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            (outputs,) = session.run(None, {name: np.asarray(inputs, dtype=np.float32)})
            body = json.dumps(outputs.tolist()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """No line for every request."""

    return HTTPServer(("127.0.0.1", port), Answer)


def main(port: int = 0) -> None:
    """Serve, or ask once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.onnx")
        small, example = write(path)
        with server(path, port) as one:
            print(f"http://127.0.0.1:{one.server_port}")
            if port:
                one.serve_forever()
            thread = threading.Thread(target=one.serve_forever)
            thread.start()
            try:
                body = json.dumps(example.expand(3, -1, -1, -1).tolist()).encode()
                with urllib.request.urlopen(f"http://127.0.0.1:{one.server_port}", body) as reply:
                    answers = torch.tensor(json.load(reply))
            finally:
                one.shutdown()
                thread.join()
    assert torch.allclose(answers, small(example).expand(3, -1), atol=1e-5)
    print("the served file answers as the compressed model does")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
