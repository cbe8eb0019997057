"""A real S3 API on the loopback address, in this process, that can be told to refuse."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import boto3
from moto.moto_api._internal.models import moto_api_backend
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "backups"
# What signs requests; the server asks nobody for more.
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}


class S3:
    """One bucket. `url` is for HUB_BLOB_URL; `KEYS` must be in the environment."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._application = DomainDispatcherApplication(create_backend_app)
        self._refusal: tuple[str, int, str] | None = None
        self._grace = 0
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"s3://{BUCKET}/hub?endpoint={self.endpoint}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )
        # The service behind is one for the whole process.
        moto_api_backend.reset()
        self.client.create_bucket(Bucket=BUCKET)

    def refuse(self, method: str, status: int = 403, code: str = "AccessDenied", after: int = 0) -> None:
        """From now on, after so many requests of this method, answer them with an error."""
        self._refusal, self._grace = (method, status, code), after

    def relent(self) -> None:
        """Refuse nothing any more."""
        self._refusal = None

    def names(self) -> list[str]:
        """The keys of all files."""
        return sorted(found["Key"] for found in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", []))

    def unfinished(self) -> list[str]:
        """The keys of uploads that were begun and neither completed nor aborted."""
        return [found["Key"] for found in self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]

    def close(self) -> None:
        """Stop serving, and forget everything."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self._refusal and environ["REQUEST_METHOD"] == self._refusal[0]:
            self._grace -= 1
            if self._grace < 0:
                _, status, code = self._refusal
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response(f"{status} {code}", [("Content-Type", "application/xml")])
                return [f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()]
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer
