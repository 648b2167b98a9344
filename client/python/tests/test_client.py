"""Every call against a real server, over TCP and over a Unix socket."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable

import numpy as np
import pytest
from conftest import Server, make_namespace, prompt

import kvatlas
from kvatlas import Client, Found, Gates, KvatlasError, Miss, Namespace, Owner
from kvatlas.v1.routing_pb2 import QueryVectors

EXAMPLE_PRIOR = pathlib.Path(__file__).resolve().parents[3] / "examples"


def register(client: Client, namespace: Namespace, donor_id: str, tokens: np.ndarray) -> str:
    """Also announces the owner, which is the store's and the donor's name."""
    client.announce_owner(donor_id, 1)
    captured = len(tokens) - len(tokens) % namespace.block_size
    donor = kvatlas.Donor(
        donor_id=donor_id,
        namespace=namespace,
        owner=Owner(donor_id),
        owner_generation=1,
        tokens=tokens,
        captured_tokens=captured,
        exact_tokens=captured,
        medium="host",
        store_id=donor_id,
    )
    registered = client.register_donor(donor)
    assert registered.admission == "added"
    return registered.namespace_id


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_a_lookup_leads_to_a_lease_over_either_transport(
    server: Server, namespace: Namespace, transport: str
) -> None:
    address = server.address if transport == "tcp" else f"unix:{server.unix}"
    with Client(address, lookup_timeout_s=10) as client:
        assert client.connect()
        donor_id = f"donor-{transport}"
        namespace_id = register(client, namespace, donor_id, prompt(1))
        found = client.find_donor(
            prompt(1),
            namespace,
            holder="engine",
            request_id=f"request-{transport}",
            readable_store_ids=[donor_id],
        )
        assert isinstance(found, Found), found
        assert (found.outcome, found.tier, found.cache_policy) == (
            "prefix",
            "exact",
            "exact_commit",
        )
        assert (found.donor_id, found.owner) == (donor_id, Owner(donor_id))
        # One token is left to compute, and so a whole block.
        assert (found.reusable_prefix_tokens, found.captured_tokens) == (1008, 1024)
        assert found.spans == (kvatlas.Span(0, 0, 1024, "exact"),)
        assert (found.namespace_id, found.mode) == (namespace_id, "materialize")
        assert found.timings["total_us"] > 0
        assert found.lease is not None
        assert found.lease_refusal is None
        lease_id = found.lease.id
        state, remaining = client.validate(lease_id, "engine")
        assert state == "valid"
        assert 0 < remaining <= found.lease.ttl_ms
        assert client.validate(lease_id, "another")[0] == "not_holder"
        assert client.renew(lease_id, "engine", 60_000) == "valid"
        assert client.validate(lease_id)[1] > 30_000
        assert client.release(lease_id, "engine") is True
        assert client.release(lease_id, "engine") is False
        assert client.validate(lease_id, "engine") == ("unknown", 0)


def test_every_option_of_a_lookup_reaches_the_server(client: Client, namespace: Namespace) -> None:
    namespace_id = register(client, namespace, "a", prompt(2))
    moved = np.concatenate([prompt(3, 40), prompt(2)])

    def find(**options: object) -> Found | Miss:
        return client.find_donor(moved, namespace_id, **options)

    found = find(holder="h")
    assert isinstance(found, Found)
    assert (found.outcome, found.reason) == ("spans", "not_prefix_anchored")
    assert (found.lease, found.lease_refusal) == (None, "store_not_readable")
    assert find().lease_refusal == "holder_missing"
    store = {"readable_store_ids": ["a"]}
    assert find(**store, holder="h").lease_refusal == "spans_not_accepted"
    leased = find(**store, holder="h", accept_spans=True, lease_ttl_ms=5000)
    assert isinstance(leased, Found)
    assert leased.lease is not None
    assert leased.lease.ttl_ms <= 5000
    assert find(**store, accept_spans=True).lease_refusal == "holder_missing"
    anchored = find(exact_prefix_tokens=48)
    assert isinstance(anchored, Found)
    assert (anchored.outcome, anchored.donor_offset) == ("prefix", 8)
    rejected = find(gates=Gates(min_reuse_tokens=2000), explain=True)
    assert isinstance(rejected, Miss)
    assert rejected.reason == "low_reuse_tokens"
    assert rejected.namespace_id == namespace_id
    assert [candidate.donor_id for candidate in rejected.rejected] == ["a"]
    assert find(minimum_tier="exact") != find()
    again = [find(request_id="r").repeated for _ in range(2)]
    assert again == [False, False], "without a lease nothing is remembered"


def test_a_repeated_lookup_gets_the_same_lease(client: Client, namespace: Namespace) -> None:
    register(client, namespace, "a", prompt(4))
    both = [
        client.find_donor(
            prompt(4), namespace, holder="h", request_id="r", readable_store_ids=["a"]
        )
        for _ in range(2)
    ]
    assert [found.repeated for found in both] == [False, True]
    assert both[0].lease.id == both[1].lease.id


def test_no_search_crosses_a_namespace(client: Client, namespace: Namespace) -> None:
    register(client, namespace, "a", prompt(5))
    other = make_namespace(model=namespace.model, tenant_key=kvatlas.tenant_key("somebody else"))
    answer = client.find_donor(prompt(5), other)
    assert isinstance(answer, Miss)
    assert answer.reason == "provider_miss"


def test_donors_are_removed_by_id_by_owner_and_by_namespace(
    client: Client, namespace: Namespace
) -> None:
    for name in ("a", "b", "c", "d"):
        register(client, namespace, name, prompt(ord(name)))
    assert client.remove_donors(["a", "unknown"], namespace=namespace) == 1
    assert client.remove_donors(owner=Owner("b")) == 1
    assert client.remove_donors(namespace=namespace) == 2
    with pytest.raises(ValueError, match="ids and a namespace"):
        client.remove_donors()


def test_a_report_ends_the_lease(client: Client, namespace: Namespace) -> None:
    register(client, namespace, "a", prompt(6))
    found = client.find_donor(prompt(6), namespace, holder="h", readable_store_ids=["a"])
    assert isinstance(found, Found)
    assert found.lease is not None
    report = {"holder": "h", "lease_id": found.lease.id}
    done = client.report_reuse("r", "exact_external_hit", tokens_loaded=1008, **report)
    assert done is True
    assert client.validate(found.lease.id)[0] == "unknown"
    assert client.report_reuse("r", "candidate_rejected", reason="load_failed") is False
    with pytest.raises(ValueError, match="provenance is one of exact_local_prefix_hit"):
        client.report_reuse("r", "nonsense")


def test_a_prior_is_put_and_answers(client: Client, tmp_path: pathlib.Path) -> None:
    prior = sorted(EXAMPLE_PRIOR.rglob("*.safetensors"))[0]
    by_path = client.put_prior(prior, "prefix", algorithm="kri-d", repair=("xa25", 0.25))
    repaired = client.get_manifest("prefix", k=4)
    assert isinstance(repaired, kvatlas.Manifest), repaired
    assert repaired.repair == kvatlas.Repair("xa25", 0.25)
    by_bytes = client.put_prior(prior.read_bytes(), "prefix", algorithm="kri-d")
    assert (by_path.replaced, by_bytes.replaced) == (False, True)
    assert by_bytes.generation > by_path.generation
    manifest = client.get_manifest("prefix", k=4)
    assert isinstance(manifest, kvatlas.Manifest), manifest
    assert len(manifest.block_indices) == manifest.effective_k == 4
    assert (manifest.algorithm, manifest.provenance) == ("kri-d", "prior")
    assert manifest.prior_generation == by_bytes.generation
    assert manifest.repair is None
    assert client.validate(manifest.lease.id)[0] == "valid"
    per_head = client.get_manifest("prefix", k=2, policy="per-head")
    assert isinstance(per_head, kvatlas.Manifest), per_head
    assert per_head.heads is not None
    assert len(per_head.head_block_indices) == per_head.heads[0] * per_head.heads[1] * 2


def test_an_unknown_prefix_is_a_miss_and_a_policy_needs_none(client: Client) -> None:
    miss = client.get_manifest("nowhere", k=4)
    assert isinstance(miss, Miss)
    assert miss.reason == "provider_miss"
    manifest = client.get_manifest("nowhere", k=4, policy="recency", total_blocks=10)
    assert isinstance(manifest, kvatlas.Manifest), manifest
    assert manifest.block_indices == (6, 7, 8, 9)
    assert manifest.provenance == "policy_only"
    refused = client.get_manifest("nowhere", k=4, policy="A1R")
    assert isinstance(refused, Miss)
    assert refused.reason == "unsupported_request"


def test_segments_over_several_donors_are_listed_on_request(
    client: Client, namespace: Namespace
) -> None:
    register(client, namespace, "a", prompt(10))
    register(client, namespace, "b", prompt(11))
    segments = (
        kvatlas.Segment("a", Owner("a"), kvatlas.Span(0, 0, 1024, "exact")),
        kvatlas.Segment("b", Owner("b"), kvatlas.Span(0, 1024, 512, "verified")),
    )
    both = np.concatenate([prompt(10), prompt(11)[:512]])
    # As many on a miss as on a hit.
    for gates in (Gates(), Gates(min_similarity=0.9)):
        answer = client.find_donor(both, namespace, segment_donors_max=2, gates=gates)
        assert answer.segments == segments
    assert isinstance(answer, Miss)
    assert answer.reason == "low_similarity"


def test_a_query_is_kept_for_manifests_scored_online(client: Client) -> None:
    vectors = np.ones((1, 1, 8), "<f4").tobytes()
    query = QueryVectors(
        frame="ROPE_FRAME_POST_ROPE",
        element_type="ELEMENT_TYPE_F32",
        layer_ids=[0],
        heads=1,
        head_dim=8,
        vectors=vectors,
    )
    assert client.put_query("q", query, 60_000) > 0
    asked = client.get_manifest("nowhere", k=4, query_hash="q", algorithm="kri-q", query=query)
    assert isinstance(asked, Miss)
    assert asked.reason == "provider_miss"


def test_workers_are_found_and_requests_finished(client: Client) -> None:
    answer = client.find_workers(prompt(7), pick=True, request_id="r")
    assert answer == kvatlas.Workers((), None, 0, False)
    assert client.finish_requests(["r"]) == 0


def test_the_mode_is_set_per_server_and_namespace(
    serve: Callable[..., Server], namespace: Namespace
) -> None:
    with Client(serve().address, lookup_timeout_s=10) as client:
        assert client.status().mode == "discovery_only"
        namespace_id = register(client, namespace, "a", prompt(8))
        assert client.set_mode("disabled", namespace_id) == "disabled"
        off = client.find_donor(prompt(8), namespace)
        assert isinstance(off, Miss)
        assert (off.reason, off.mode) == ("provider_disabled", "disabled")
        assert client.set_mode("", namespace_id) == "discovery_only"
        assert client.set_mode("materialize") == "materialize"
        assert client.status().donors == 1


def test_a_refused_control_call_says_why_and_that_it_is_no_use_to_repeat_it(
    client: Client, namespace: Namespace
) -> None:
    client.announce_owner("w", 5)
    with pytest.raises(KvatlasError) as refused:
        client.announce_owner("w", 4)
    assert refused.value.code == "failed_precondition"
    assert not refused.value.retryable
    with pytest.raises(ValueError, match="at most captured_tokens"):
        client.register_donor(
            kvatlas.Donor("d", namespace, Owner("w"), 5, prompt(9), 16, "host", "s", 17)
        )


def test_closing_at_once_after_connecting_leaves_no_thread_that_fails(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = set(threading.enumerate())
    for _ in range(50):
        client = Client(server.address)
        assert client.connect(20)
        client.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert failed == []


def test_a_client_that_is_closed_misses(server: Server, namespace: Namespace) -> None:
    first, second = Client(server.address), Client(server.address, lookup_timeout_s=10)
    first.close()
    first.close()
    answer = first.find_donor(prompt(1), namespace)
    assert isinstance(answer, Miss)
    assert (answer.reason, answer.detail) == ("provider_error", "cancelled: the client is closed")
    # Their connection was one; it lives while somebody uses it.
    assert second.find_donor(prompt(1), namespace).reason == "provider_miss"
    second.close()


def test_a_prompt_is_not_shown(namespace: Namespace) -> None:
    donor = kvatlas.Donor(
        "d", namespace, Owner("w"), 1, np.array([77_777]), 0, "host", "s", text="secret"
    )
    assert "77777" not in repr(donor)
    assert "secret" not in repr(donor)


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "unix:",
        ":1",
        "h:99999",
        "https://h",
        "http://https://h:1",
        "ftp://h:1",
        "a b:1",
        "h:1:2/x",
    ],
)
def test_an_address_that_cannot_be_one_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        Client(address)


def test_the_address_comes_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVATLAS_ADDRESS", f"http://{server.address}/")
    with Client() as client:
        assert client.status().version
