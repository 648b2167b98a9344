"""Draws latency and memory against donors from what `kvatlas-loadtest donors --json` printed.

    cargo run --release -p kvatlas-loadtest -- donors --donors 1000000 --json > docs/donors.json
    python3 docs/make_donors_chart.py

Reads docs/donors.json, writes docs/donors.svg. The standard library is all it needs. The first
takes 8 GB of memory, 5 GB below the folder for temporary files, and some minutes on two cores.
"""

import json
import math
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
WIDTH, HEIGHT = 960, 660
LEFT, RIGHT = 92, 220
# Top and bottom of the two panels.
LATENCY, MEMORY = (96, 376), (428, 598)
LABEL_STEP = 34

# Name, note, class, and the microseconds of a size.
SERIES = [
    ("p99, a miss", "neighbours included", "asked",
     lambda s: s["mixed"]["neighbours"]["p99_us"]),
    ("p99.9", "all classes", "tail", lambda s: s["mixed"]["search_p999_us"]),
    ("p99, slowest class", "", "worst", lambda s: slowest(s)[1]),
    ("p99", "all classes", "high", lambda s: s["mixed"]["search_p99_us"]),
    ("p50", "all classes", "middle", lambda s: s["mixed"]["search_p50_us"]),
]

# Of each class of series, on light paper and on dark.
INKS = {
    "asked": ("#a40e26", "#ff8182"),
    "tail": ("#6e7781", "#9198a1"),
    "worst": ("#b35900", "#f0a35e"),
    "high": ("#0757ba", "#79b8ff"),
    "middle": ("#16794a", "#56d093"),
    "memory": ("#8250df", "#bc8cff"),
}


def slowest(size):
    """Name and p99 of the class whose p99 is the highest."""
    return max(((name, of["mixed"]["search_p99_us"]) for name, of in size["classes"].items()),
               key=lambda pair: pair[1])


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
  .small {{ font-size: 12px }} .middle-text {{ text-anchor: middle }} .end {{ text-anchor: end }}
  .grid, .axis {{ stroke-width: 1 }}
  .line {{ fill: none; stroke-width: 2.5; stroke-linejoin: round }}
  .asked .line, .tail .line, .worst .line {{ stroke-width: 1.5; stroke-dasharray: 5 4 }}
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
    report = json.loads((HERE / "donors.json").read_text())
    (HERE / "donors.svg").write_text(draw(report))


def draw(report):
    sizes = report["growth"]
    x = Scale(sizes[0]["donors"], max(sizes[-1]["donors"], 2 * sizes[0]["donors"]),
              LEFT, WIDTH - RIGHT)
    lines = [(name, note, kind, [(size["donors"], us(size)) for size in sizes])
             for name, note, kind, us in SERIES]
    memory = [(size["donors"], size["rss_mb"]) for size in sizes if size["rss_mb"]]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(summary(report))}</title>",
        f"<style>{style()}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        *heading(report),
        *panel(x, [time for *_, known in lines for _, time in known], LATENCY, "microseconds"),
        *(curve(x, panel_scale(lines_values(lines), LATENCY), kind, known)
          for _, _, kind, known in lines),
        *labels(panel_scale(lines_values(lines), LATENCY), lines, "{:,.0f} us"),
        *donor_ticks(x, sizes),
    ]
    if memory:
        last = sizes[-1]
        note = f"{last['rss_bytes_per_token']:.2f} bytes a token"
        line = [("memory", note, "memory", memory)]
        y = panel_scale([megabytes for _, megabytes in memory], MEMORY)
        parts += panel(x, [megabytes for _, megabytes in memory], MEMORY, "megabytes")
        parts.append(curve(x, y, "memory", memory))
        parts += labels(y, line, "{:,.0f} MB")
    return "\n".join([*parts, "</svg>"]) + "\n"


def lines_values(lines):
    return [value for *_, known in lines for _, value in known]


def summary(report):
    last = report["growth"][-1]
    return (
        f"Donors: with {last['donors']:,} of {report['tokens']:,} tokens the search takes "
        f"{last['mixed']['search_p50_us']:.0f} us at the median and "
        f"{last['mixed']['search_p99_us']:.0f} us at the 99th percentile"
    )


def heading(report):
    last = report["growth"][-1]
    least = report["growth"][0]["donors"]
    what = f"Looking for a donor among {least:,} to {last['donors']:,}"
    what += f" of {report['tokens']:,} tokens"
    if len(report["growth"]) == 1:
        what = f"Looking for a donor among {last['donors']:,} of {report['tokens']:,} tokens"
    how = (
        "Inside the server, 95 % look-ups of thirteen classes and 5 % registrations at 70 % of "
        "its capacity, two cores"
    )
    lines = [how]
    if last["sketches_behind"]:
        lines.append(f"{last['sketches_behind']:,} donors were not among the neighbours yet")
    return [
        f'<text class="title" x="{LEFT}" y="34">{escape(what)}</text>',
        *(f'<text class="quiet" x="{LEFT}" y="{56 + 18 * at}">{escape(line)}</text>'
          for at, line in enumerate(lines)),
    ]


def panel_scale(values, place):
    top, bottom = place
    return Scale(round_down(min(values)), round_up(max(values)), bottom, top)


def panel(x, values, place, unit):
    y = panel_scale(values, place)
    top, bottom = place
    parts = []
    for value in ticks(math.exp(y.low), math.exp(y.high)):
        at = y(value)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="quiet end" x="{LEFT - 10}" y="{at + 4.5:.1f}">{value:,g}</text>')
    parts.append(
        f'<text class="middle-text" transform="translate(20 {(top + bottom) / 2}) rotate(-90)">'
        f"{unit}</text>"
    )
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
    return parts


def donor_ticks(x, sizes):
    parts = []
    for donors in (size["donors"] for size in sizes):
        at = x(donors)
        for _, bottom in (LATENCY, MEMORY):
            parts.append(f'<path class="axis" d="M{at:.1f} {bottom}v5"/>')
        parts.append(
            f'<text class="middle-text" x="{at:.1f}" y="{MEMORY[1] + 22}">{donors:,}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 44}" y="{MEMORY[1] + 22}">donors</text>')
    return parts


def curve(x, y, kind, known):
    at = [(x(donors), y(value)) for donors, value in known]
    path = "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in at)
    dots = "".join(f'<circle class="dot" cx="{left:.1f}" cy="{top:.1f}" r="3"/>'
                   for left, top in at)
    return f'<g class="{kind}"><path class="line" d="{path}"/>{dots}</g>'


def labels(y, lines, unit):
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
    parts = []
    for top, (_, name, note, kind, value) in zip(tops, ends):
        told = ", ".join(filter(None, [unit.format(value), note]))
        parts.append(
            f'<g class="{kind}"><text class="name" x="{left}" y="{top - 3:.1f}">{escape(name)}'
            f'</text><text class="quiet small" x="{left}" y="{top + 12:.1f}">{escape(told)}'
            "</text></g>"
        )
    return parts


def ticks(least, most):
    """1, 2 and 5 times the powers of ten; the powers alone where those are many."""
    steps = (1, 2, 5) if most / least <= 500 else (1,)
    power = math.floor(math.log10(least)) - 1
    while 10.0**power <= most * 1.001:
        for step in steps:
            value = step * 10.0**power
            if least * 0.999 <= value <= most * 1.001:
                yield value
        power += 1


def round_down(value):
    return max(tick for tick in ticks(value / 10, value))


def round_up(value):
    return min(tick for tick in ticks(value, value * 10))


main()
