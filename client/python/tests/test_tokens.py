"""Tokens travel as one numpy buffer: nothing in Python looks at one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import make_namespace
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvatlas import Client, Donor, Miss, Owner, calls
from kvatlas.v1 import donors_pb2

NAMESPACE = make_namespace()


class Sealed(np.ndarray):
    """An array that cannot be walked: whoever takes its items one by one fails."""

    def _walked(self, *_: Any) -> Any:
        raise AssertionError("the tokens are walked")

    __iter__ = __getitem__ = tolist = item = __contains__ = _walked


def find_request(tokens: Any) -> donors_pb2.FindDonorRequest:
    ask = calls.find_donor(tokens, NAMESPACE, {})
    assert isinstance(ask, calls.Ask), ask
    request = ask.request
    assert isinstance(request, donors_pb2.FindDonorRequest)
    return request


def python_steps(work: Callable[[], object]) -> int:
    """Lines and calls that Python goes through."""
    steps = 0

    def count(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, ">u4"])
def test_no_token_is_looked_at_alone(dtype: Any) -> None:
    tokens = np.arange(8192).astype(dtype).view(Sealed)
    with pytest.raises(AssertionError, match="walked"):
        list(tokens)
    request = find_request(tokens)
    assert np.frombuffer(request.tokens.packed, "<u4").sum() == 8191 * 4096
    assert not request.tokens.ids
    donor = Donor("d", NAMESPACE, Owner("w"), 1, tokens, 0, "host", "s")
    assert calls.register_donor(donor).request.tokens == request.tokens
    assert python_steps(lambda: find_request(tokens)) < 1000
    assert python_steps(lambda: [int(token) for token in range(8192)]) > 8000


@given(
    hnp.arrays(
        st.sampled_from([np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i8"]),
        st.integers(1, 40),
    )
)
def test_ids_are_packed_as_little_endian_words_or_refused(tokens: Any) -> None:
    """Against the slow way: one id after another."""
    ids = [int(token) for token in tokens]
    if all(0 <= one < 2**32 for one in ids):
        expected = b"".join(one.to_bytes(4, "little") for one in ids)
        assert calls.pack(tokens) == expected
        # Neither a stride nor a direction changes what is sent.
        assert calls.pack(np.repeat(tokens, 2)[::2]) == expected
        assert calls.pack(tokens[::-1]) == calls.pack(tokens[::-1].copy())
    else:
        with pytest.raises(ValueError, match="0 to 4294967295"):
            calls.pack(tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        np.zeros((2, 2), np.int64),
        np.array([1.0]),
        np.array([True]),
        np.array([], np.int64),
        np.array(["a"]),
        None,
    ],
    ids=["square", "float", "bool", "empty", "text", "none"],
)
def test_what_is_no_prompt_is_unsupported(tokens: Any) -> None:
    with Client("127.0.0.1:1") as client:
        answer = client.find_donor(tokens, NAMESPACE)
    assert isinstance(answer, Miss)
    assert answer.reason == "unsupported_request"
