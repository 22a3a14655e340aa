"""An identity provider of a test's own: keys at /jwks, tokens at /token, over HTTPS, and a count of what was asked."""

import json
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from tests.support.certificates import Authority

from ottla.security.sasl.oauth.http import ALLOWED_FILES, ALLOWED_URLS

ISSUER = "https://idp.example"
AUDIENCE = "kafka"
# What a request for a token is answered with: a status, and a document.
Answer = tuple[int, dict[str, Any] | bytes]


class IdentityProvider:
    """Signs tokens for whoever asks, unless told otherwise. A context manager."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.asked: Counter[str] = Counter()
        self.forms: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.lifetime_s = 300
        self.subject = "alice"
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.new_key()
        # What is answered instead, by path.
        self.instead: dict[str, Callable[[], Answer]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.answer({name: values[0] for name, values in parse_qs(body).items()})

            def answer(self, form: dict[str, str]) -> None:
                status, document = provider.answer(self.path, form, dict(self.headers))
                data = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"{provider.url}/elsewhere")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = authority.server_context(authority.issue(), ssl.CERT_NONE)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks"

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def environment(self, *files: Path) -> dict[str, str]:
        """What lets a process ask it."""
        return {
            ALLOWED_URLS: f"{self.jwks_url},{self.token_url}",
            ALLOWED_FILES: ",".join(map(str, files)),
        }

    @property
    def trust(self) -> str:
        """The JAAS options by which its certificate is trusted."""
        return f'ssl.truststore.type="PEM" ssl.truststore.location="{self.authority.certificate}"'

    def new_key(self) -> str:
        """From now on tokens are signed by a new key; the old ones are still told of."""
        self.key_id = uuid.uuid4().hex
        self.keys[self.key_id] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return self.key_id

    def jwks(self) -> dict[str, Any]:
        return {
            "keys": [
                {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}
                for key_id, key in self.keys.items()
            ]
        }

    def token(
        self, *, key: Any = None, algorithm: str = "RS256", kid: str | None = None, **changed: Any
    ) -> str:
        """A good one, unless it is changed; None takes a claim away."""
        now = int(time.time())
        usual = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": self.subject,
            "iat": now,
            "exp": now + self.lifetime_s,
            "jti": uuid.uuid4().hex,
        }
        claims = {name: value for name, value in {**usual, **changed}.items() if value is not None}
        signing = self.keys[self.key_id] if key is None else key
        return jwt.encode(claims, signing, algorithm=algorithm, headers={"kid": kid or self.key_id})

    def answer(self, path: str, form: dict[str, str], headers: dict[str, str]) -> Answer:
        self.asked[path] += 1
        if path in self.instead:
            return self.instead[path]()
        if path == "/jwks":
            return 200, self.jwks()
        if path == "/token":
            self.forms.append(form)
            self.headers.append(headers)
            return 200, {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 404, {"error": "not_found"}
