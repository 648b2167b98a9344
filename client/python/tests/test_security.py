"""Bearer tokens and TLS, against a server of this test's own."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import fake
import grpc
import pytest
from conftest import make_namespace, prompt

from kvatlas import Client, KvatlasError, Miss

trustme = pytest.importorskip("trustme")
NAMESPACE = make_namespace()


class Guard:
    """Answers with the authorization that came."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, path: str, request: bytes, context: Any) -> bytes:
        self.seen.append(dict(context.invocation_metadata()).get("authorization", "none"))
        return b""


@pytest.fixture
def guarded() -> Iterator[tuple[str, Guard]]:
    guard = Guard()
    with fake.serve(guard) as address:
        yield address, guard


def replace(path: pathlib.Path, text: str) -> None:
    """As secrets are rotated: another file under the name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_the_token_goes_with_every_call_and_is_read_again_when_it_changes(
    guarded: tuple[str, Guard], tmp_path: pathlib.Path
) -> None:
    address, guard = guarded
    token = tmp_path / "token"
    token.write_text("first\n")
    with Client(address, lookup_timeout_s=10, token_file=str(token)) as client:
        client.find_donor(prompt(1), NAMESPACE)
        client.status()
        replace(token, "second")
        client.validate(b"x")
        token.unlink()
        client.validate(b"x")
        token.write_text("third")
        client.get_manifest("p", k=1)
    assert guard.seen == ["Bearer first"] * 2 + ["Bearer second"] * 2 + ["Bearer third"]


def test_without_a_token_file_none_is_sent(guarded: tuple[str, Guard]) -> None:
    address, guard = guarded
    with Client(address, lookup_timeout_s=10) as client:
        client.status()
    assert guard.seen == ["none"]


def test_a_token_file_that_is_not_there_is_told_and_never_its_content(
    guarded: tuple[str, Guard], tmp_path: pathlib.Path
) -> None:
    address, guard = guarded
    token = tmp_path / "token"
    with Client(address, lookup_timeout_s=10, token_file=str(token)) as client:
        answer = client.find_donor(prompt(1), NAMESPACE)
        assert isinstance(answer, Miss)
        assert answer.reason == "provider_error"
        assert answer.detail.startswith("unauthenticated: the token file cannot be read")
        token.write_text("s\u00e9cret")
        with pytest.raises(KvatlasError, match="UnicodeDecodeError") as unreadable:
            client.status()
        assert "cret" not in str(unreadable.value)
        token.write_text("two\nlines")
        assert client.find_donor(prompt(1), NAMESPACE).reason == "provider_error"
        token.write_text("good")
        client.status()
    assert guard.seen == ["Bearer good"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    made = trustme.CA()
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    made.cert_pem.write_to_path(str(path))
    return made, str(path)


def test_a_server_with_a_trusted_certificate_is_asked(
    authority: tuple[Any, str], tmp_path: pathlib.Path
) -> None:
    made, ca = authority
    certificate = made.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])
    guard = Guard()
    token = tmp_path / "token"
    token.write_text("secret")
    with fake.serve(guard, credentials) as address:
        with Client(address, lookup_timeout_s=10, tls_ca=ca, token_file=str(token)) as client:
            client.status()
        assert guard.seen == ["Bearer secret"]
        with Client(
            f"https://{address}", lookup_timeout_s=10, tls_ca=ca, token_file=str(token)
        ) as same:
            same.status()
        assert len(guard.seen) == 2
        # Neither one that trusts somebody else nor one without TLS is answered.
        other = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(str(other))
        for name, ca_file in ((address, str(other)), (address, None), (f"https://{address}", None)):
            with Client(name, lookup_timeout_s=2, tls_ca=ca_file) as stranger:
                answer = stranger.find_donor(prompt(1), NAMESPACE)
                assert isinstance(answer, Miss)
                assert answer.reason in {"provider_error", "provider_timeout"}
        assert len(guard.seen) == 2


def test_a_ca_file_that_is_not_there_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        Client("127.0.0.1:1", tls_ca=str(tmp_path / "none.pem"))
