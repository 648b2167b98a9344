"""Draws time against blocks from what `kvatlas-loadtest score --sweep --json` printed.

    cargo run --release -p kvatlas-loadtest -- score --sweep --json > docs/score.json
    python3 docs/make_score_chart.py

Reads docs/score.json, writes docs/score-time.svg. The standard library is all it needs.
"""

import json
import math
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
WIDTH, HEIGHT = 880, 500
LEFT, RIGHT, TOP, BOTTOM = 74, 184, 84, 62
LABEL_STEP = 34
BLOCK_TOKENS = 16

# Name, note, class, and the milliseconds of a point.
SERIES = [
    ("numpy", "float32", "numpy", lambda p: p["numpy_ms_p50"]),
    ("full pass", "f16", "full", lambda p: p["ms_p50"]),
    ("plain read", "the same bytes", "read", lambda p: p["bytes"] / p["stream_gb_per_s"] / 1e6),
    ("screened pass", "int8, then f16", "screened", lambda p: p["screened_ms_p50"]),
]

# Of each class of series, on light paper and on dark.
INKS = {
    "numpy": ("#b35900", "#f0a35e"),
    "full": ("#0757ba", "#79b8ff"),
    "read": ("#6e7781", "#9198a1"),
    "screened": ("#16794a", "#56d093"),
}


def style():
    def inks(which):
        return " ".join(
            f".{kind} .line {{ stroke: {ink[which]} }} "
            f".{kind} .dot, .{kind} .name {{ fill: {ink[which]} }}"
            for kind, ink in INKS.items()
        )

    return f"""
  text {{ font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }}
  .title {{ font-size: 18px; font-weight: 600 }} .name {{ font-weight: 600 }}
  .small {{ font-size: 12px }} .middle {{ text-anchor: middle }} .end {{ text-anchor: end }}
  .grid, .axis {{ stroke-width: 1 }}
  .line {{ fill: none; stroke-width: 2.5; stroke-linejoin: round }}
  .read .line {{ stroke-width: 1.5; stroke-dasharray: 5 4 }}
  .paper {{ fill: #ffffff }} text {{ fill: #1f2328 }} .quiet {{ fill: #59636e }}
  .grid {{ stroke: #d8dee4 }} .axis {{ stroke: #818b98 }}
  {inks(0)}
  @media (prefers-color-scheme: dark) {{
    .paper {{ fill: #0d1117 }} text {{ fill: #e6edf3 }} .quiet {{ fill: #9198a1 }}
    .grid {{ stroke: #2a313c }} .axis {{ stroke: #656c76 }}
    {inks(1)}
  }}
"""


class Scale:
    """Logarithmic, from a value to a place on the page."""

    def __init__(self, least, most, start, end):
        self.low, self.high = math.log(least), math.log(most)
        self.start, self.end = start, end

    def __call__(self, value):
        share = (math.log(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def main():
    points = json.loads((HERE / "score.json").read_text())["points"]
    picture = draw(points)
    (HERE / "score-time.svg").write_text(picture)


def draw(points):
    lines = []
    for name, note, kind, ms in SERIES:
        known = [(p["blocks"], ms(p)) for p in points if reads(ms, p)]
        if known:
            lines.append((name, note, kind, known))
    times = [time for *_, known in lines for _, time in known]
    x = Scale(points[0]["blocks"], points[-1]["blocks"], LEFT, WIDTH - RIGHT)
    y = Scale(round_down(min(times)), round_up(max(times)), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(summary(points[-1]))}</title>",
        f"<style>{style()}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        *heading(points[-1]),
        *horizontal_grid(y),
        *block_ticks(x, points),
        *(curve(x, y, kind, known) for _, _, kind, known in lines),
        *labels(y, lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def reads(ms, point):
    try:
        return ms(point) is not None
    except (KeyError, TypeError, ZeroDivisionError):
        return False


def summary(point):
    numpy = point["numpy_ms_p50"]
    against = f", numpy {numpy:.1f} ms" if numpy else ""
    return (
        f"Time against blocks: at {point['blocks']} blocks the full pass takes "
        f"{point['ms_p50']:.1f} ms, the screened pass {point['screened_ms_p50']:.1f} ms{against}"
    )


def heading(point):
    what = f"Scoring every block of a prefix against one query: {model(point)}"
    row = point["bytes"] // point["blocks"]
    instructions = point["instructions"].upper().replace("AVX512", "AVX-512")
    how = (
        f"{point['algorithm'].upper()}, best {point['k']}, {point['threads']} threads, "
        f"{instructions}, {row / 1024:.0f} KiB a block in f16; medians"
    )
    return [
        f'<text class="title" x="{LEFT}" y="34">{escape(what)}</text>',
        f'<text class="quiet" x="{LEFT}" y="56">{escape(how)}</text>',
    ]


def model(point):
    return "-".join(part.capitalize() if part[0].isalpha() else part.upper()
                    for part in point["model"].split("-"))


def horizontal_grid(y):
    parts = []
    for time in ticks(math.exp(y.low), math.exp(y.high)):
        at = y(time)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="quiet end" x="{LEFT - 10}" y="{at + 4.5:.1f}">{time:g}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="middle" transform="translate(22 {middle}) rotate(-90)">milliseconds</text>'
    )
    return parts


def block_ticks(x, points):
    floor = HEIGHT - BOTTOM
    parts = [f'<path class="axis" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>']
    for blocks in (point["blocks"] for point in points):
        at, tokens = x(blocks), blocks * BLOCK_TOKENS / 1024
        parts.append(f'<path class="axis" d="M{at:.1f} {floor}v5"/>')
        parts.append(f'<text class="middle" x="{at:.1f}" y="{floor + 22}">{blocks:,}</text>')
        parts.append(
            f'<text class="quiet small middle" x="{at:.1f}" y="{floor + 38}">{tokens:.3g}k</text>'
        )
    end = WIDTH - RIGHT + 34
    parts.append(f'<text x="{end}" y="{floor + 22}">blocks</text>')
    parts.append(f'<text class="quiet small" x="{end}" y="{floor + 38}">tokens</text>')
    return parts


def curve(x, y, kind, known):
    at = [(x(blocks), y(time)) for blocks, time in known]
    path = "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in at)
    dots = "".join(f'<circle class="dot" cx="{left:.1f}" cy="{top:.1f}" r="3"/>'
                   for left, top in at) if kind != "read" else ""
    return f'<g class="{kind}"><path class="line" d="{path}"/>{dots}</g>'


def labels(y, lines):
    """At the right end of each line, pushed apart where they would touch."""
    ends = sorted((y(known[-1][1]), name, note, kind, known[-1][1])
                  for name, note, kind, known in lines)
    tops = [end[0] for end in ends]
    for _ in range(100):
        for upper in range(len(tops) - 1):
            short = LABEL_STEP - (tops[upper + 1] - tops[upper])
            if short > 0:
                tops[upper] -= short / 2
                tops[upper + 1] += short / 2
    left = WIDTH - RIGHT + 14
    return [
        f'<g class="{kind}"><text class="name" x="{left}" y="{top - 3:.1f}">{escape(name)}</text>'
        f'<text class="quiet small" x="{left}" y="{top + 12:.1f}">{time:.1f} ms, {escape(note)}'
        "</text></g>"
        for top, (_, name, note, kind, time) in zip(tops, ends)
    ]


def ticks(least, most):
    """1, 2 and 5 times the powers of ten."""
    power = math.floor(math.log10(least)) - 1
    while 10.0**power <= most * 1.001:
        for step in (1, 2, 5):
            value = step * 10.0**power
            if least * 0.999 <= value <= most * 1.001:
                yield value
        power += 1


def round_down(value):
    return max(tick for tick in ticks(value / 10, value))


def round_up(value):
    return min(tick for tick in ticks(value, value * 10))


main()
