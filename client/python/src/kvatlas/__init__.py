"""kvatlas for engines: whose cached prompt to borrow from, and which blocks to read.

client = kvatlas.Client()                       # KVATLAS_ADDRESS, else 127.0.0.1:50051
answer = client.find_donor(tokens, namespace)   # Found or Miss, never an exception
"""

from kvatlas.aio import AsyncClient
from kvatlas.answers import (
    Found,
    Lease,
    Manifest,
    Miss,
    Neighbour,
    Owner,
    Rejected,
    Repair,
    Segment,
    Span,
    WorkerMatch,
    Workers,
)
from kvatlas.breaker import Breaker
from kvatlas.calls import Donor, Gates, OwnerState, Registration, Status, StoredPrior
from kvatlas.client import Client
from kvatlas.errors import InvalidRequest, KvatlasError
from kvatlas.namespace import Namespace, tenant_key

__all__ = [
    "AsyncClient",
    "Breaker",
    "Client",
    "Donor",
    "Found",
    "Gates",
    "InvalidRequest",
    "KvatlasError",
    "Lease",
    "Manifest",
    "Miss",
    "Namespace",
    "Neighbour",
    "Owner",
    "OwnerState",
    "Registration",
    "Rejected",
    "Repair",
    "Segment",
    "Span",
    "Status",
    "StoredPrior",
    "WorkerMatch",
    "Workers",
    "tenant_key",
]
