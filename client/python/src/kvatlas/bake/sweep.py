"""Asks the server for manifests at every K and policy, and measures what each one costs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

import torch
from torch.nn import functional

from kvatlas import Client, Miss
from kvatlas.bake.cartridge import Cartridge, Progress, no_progress, read

# Policies that look at positions alone answer alike under every prior.
POSITIONAL = ("recency", "anchor-recency-spread", "random-middle", "hybrid")
PINNED = re.compile(r"A(\d+)R(\d+)", re.IGNORECASE)
LOOKUP_TIMEOUT_S = 5.0


@dataclasses.dataclass(frozen=True)
class Line:
    """One manifest of the sweep."""

    # "-" where no prior took part.
    algorithm: str
    policy: str
    k: int
    # None: no manifest, and `reason` says why.
    blocks: tuple[int, ...] | None
    reason: str
    # Mean KL divergence, in nats, of the next-token distributions with these blocks alone from
    # those with all; None without blocks.
    divergence: float | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is asked for: each K with each policy, and with each algorithm that it looks at."""

    algorithms: Sequence[str]
    ks: Sequence[int]
    policies: Sequence[str]

    def lines(self) -> Iterable[tuple[int, str, str]]:
        """K, policy and algorithm; "-" where the policy looks at positions alone."""
        for k in sorted(set(self.ks)):
            for policy in self.policies:
                positional = policy.partition(":")[0] in POSITIONAL
                for algorithm in ["-"] if positional else self.algorithms:
                    yield k, policy, algorithm


def ask(client: Client, cartridge: Cartridge, prefix_hash: str, plan: Plan) -> list[Line]:
    """One manifest for each line of the plan."""
    lines = []
    for k, policy, algorithm in plan.lines():
        answer = client.get_manifest(
            prefix_hash,
            k=k,
            algorithm="" if algorithm == "-" else algorithm,
            policy=budgeted(policy, k),
            total_blocks=cartridge.blocks,
            timeout_s=LOOKUP_TIMEOUT_S,
        )
        if isinstance(answer, Miss):
            lines.append(Line(algorithm, policy, k, None, f"{answer.reason} {answer.detail}"))
        elif answer.heads:
            # Which the model cannot be told here.
            lines.append(Line(algorithm, policy, k, None, "not measured: heads differ"))
        else:
            lines.append(Line(algorithm, answer.policy, k, answer.block_indices, answer.reason))
    return lines


def budgeted(policy: str, k: int) -> str:
    """`A1R2` with the rest of the budget for the best of the middle, as in `A1R2K13`."""
    pinned = PINNED.fullmatch(policy)
    if pinned is None:
        return policy
    rest = k - int(pinned[1]) - int(pinned[2])
    return f"A{pinned[1]}R{pinned[2]}K{max(rest, 0)}"


def measure(
    cartridge: Cartridge,
    probes: Sequence[torch.Tensor],
    lines: Sequence[Line],
    progress: Progress = no_progress,
) -> list[Line]:
    """The lines with their divergence: what the model says after the prefix when it reads only the
    manifest's blocks, against what it says when it reads all."""
    every = range(cartridge.blocks)
    told = {
        line.blocks: [block for block in every if block not in set(line.blocks)]
        for line in lines
        if line.blocks is not None
    }
    divergences, done = dict.fromkeys(told, 0.0), 0
    with torch.inference_mode():
        for probe in probes:
            full = read(cartridge, probe, [[]]).logits.float().log_softmax(dim=-1)
            for batch in _batches(list(told), cartridge.batch_max()):
                logits = read(cartridge, probe, [told[blocks] for blocks in batch]).logits
                routed = logits.float().log_softmax(dim=-1)
                costs = functional.kl_div(
                    routed, full.expand_as(routed), reduction="none", log_target=True
                )
                means = costs.sum(dim=-1).mean(dim=-1).tolist()
                for blocks, cost in zip(batch, means, strict=True):
                    divergences[blocks] += cost / len(probes)
                done += len(batch)
                progress(done, len(probes) * len(told))
    return [
        line
        if line.blocks is None
        else dataclasses.replace(line, divergence=divergences[line.blocks])
        for line in lines
    ]


def table(lines: Sequence[Line], blocks: int) -> str:
    """For people."""
    rows = [("K", "policy", "algorithm", "KL to dense", f"blocks of {blocks}")]
    for line in lines:
        cost = "" if line.divergence is None else f"{line.divergence:.4f}"
        rows.append((str(line.k), line.policy, line.algorithm, cost, _blocks(line)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]
        )
        for row in rows
    )


def _blocks(line: Line, shown: int = 16) -> str:
    if line.blocks is None:
        return line.reason
    more = f" and {len(line.blocks) - shown} more" if len(line.blocks) > shown else ""
    told = f" ({line.reason})" if line.reason else ""
    return " ".join(map(str, line.blocks[:shown])) + more + told


def _batches(items: list[tuple[int, ...]], size: int) -> Iterable[list[tuple[int, ...]]]:
    return (items[start : start + size] for start in range(0, len(items), size))
