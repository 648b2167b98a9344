"""Draws what `kvatlas-loadtest events` printed: our index and view beside others', and a replay.

    cargo run --release -p kvatlas-loadtest -- events --peers --json > docs/events.json
    cargo run --release -p kvatlas-loadtest -- events --trace TRACE --json >> docs/events.json
    python3 docs/make_events_chart.py

Reads docs/events.json, two lines, and writes docs/events.svg. The standard library is all it needs.
"""

import json
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
WIDTH, LEFT = 960, 40
NAMES, BAR, ROW, HEAD, GAP = 190, 200, 22, 58, 10
# Where the two columns of panels begin.
COLUMNS = (LEFT, LEFT + NAMES + BAR + 50)

# As the report names them, and as the picture does.
INDEXES = [
    ("index", "kvatlas, index alone", "ours"),
    ("view", "kvatlas, whole view", "ours"),
    ("kv-index", "kv-index 2.0.0", "peer"),
    ("dynamo-radix", "Dynamo 1.6.1 radix", "peer"),
    ("dynamo-concurrent", "Dynamo 1.6.1 concurrent", "peer"),
    ("dynamo-positional", "Dynamo 1.6.1 positional", "peer"),
]
PANELS = [
    ("Stores", "million a second, one block each", "stores_per_s", lambda v: v / 1e6, "{:.2f}"),
    ("Removals", "million a second, one block each", "removes_per_s", lambda v: v / 1e6,
     "{:.2f}"),
    ("Look-up, p99", "microseconds, alone", "find_p99_us", float, "{:.1f}"),
    ("Look-up, p99", "microseconds, beside a writer", "find_p99_us_with_writer", float, "{:.1f}"),
    ("Memory", "bytes an entry", "bytes_per_entry", float, "{:.0f}"),
    ("Memory after churn", "bytes an entry", "churned_bytes_per_entry", float, "{:.0f}"),
]

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
  .title { font-size: 18px; font-weight: 600 } .name { font-weight: 600 }
  .small { font-size: 12px } .end { text-anchor: end }
  .paper { fill: #ffffff } text { fill: #1f2328 } .quiet { fill: #59636e }
  .ours { fill: #0757ba } .peer { fill: #afb8c1 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .quiet { fill: #9198a1 }
    .ours { fill: #79b8ff } .peer { fill: #656c76 }
  }
"""


def main():
    lines = (HERE / "events.json").read_text().splitlines()
    report, trace = (json.loads(line) for line in lines)
    (HERE / "events.svg").write_text(draw(report, trace))


def draw(report, trace):
    panels = [index_panel(report, *panel) for panel in PANELS] + [trace_panel(trace)]
    body, height = [], 96
    for row in (panels[at:at + 2] for at in range(0, len(panels), 2)):
        for left, (title, note, bars, form) in zip(COLUMNS, row):
            body += panel(left, height, (title, note), bars, form)
        height += HEAD + ROW * max(len(bars) for _, _, bars, _ in row) + GAP
    said = (
        f"{report['workers']} workers, {report['blocks']:,} blocks of 16 tokens; prompts of 8,192 "
        "tokens, hashed before; two cores, medians of turns"
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(summary(report, trace))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="title" x="{LEFT}" y="34">Which worker holds which blocks</text>',
        f'<text class="quiet" x="{LEFT}" y="56">{escape(said)}</text>',
        f'<text class="quiet" x="{LEFT}" y="74">{escape(what_view_does())}</text>',
        *body,
        "</svg>",
    ]) + "\n"


def what_view_does():
    return (
        "The whole view also hashes tokens, counts copies and keeps every rule; the others are "
        "given hashes"
    )


def summary(report, trace):
    return (
        f"The view of engines' caches takes {report['view_stores_per_s'] / 1e6:.1f} million stores "
        f"a second and answers in {report['find_p99_us']:.1f} us at the 99th percentile; "
        f"FindWorkers finds {trace['find_workers_share'] * 100:.0f} % of the possible prefix hits"
    )


def index_panel(report, title, note, figure, of, form):
    bars = [
        (name, kind, of(report["indexes"][key][figure]))
        for key, name, kind in INDEXES
        if report["indexes"].get(key, {}).get(figure) is not None
    ]
    return title, note, bars, form


def trace_panel(trace):
    bars = [
        ("FindWorkers", "ours", trace["find_workers_share"] * 100),
        ("least load", "peer", trace["least_load_share"] * 100),
        ("round robin", "peer", trace["round_robin_share"] * 100),
    ]
    note = f"% of what one cache would hit, {trace['workers']} workers, a conversation trace"
    return "Prefix hits", note, bars, "{:.0f}"


def panel(left, top, heads, bars, form):
    title, note = heads
    most = max(value for *_, value in bars)
    parts = [
        f'<text class="name" x="{left}" y="{top + 14}">{escape(title)}</text>',
        f'<text class="quiet small" x="{left}" y="{top + 32}">{escape(note)}</text>',
    ]
    for at, (name, kind, value) in enumerate(bars):
        y = top + HEAD - 14 + ROW * at
        width = max(1.0, value / most * BAR)
        parts.append(f'<text class="end small" x="{left + NAMES - 32}" y="{y + 12}">'
                     f"{escape(name)}</text>")
        parts.append(f'<rect class="{kind}" x="{left + NAMES - 24}" y="{y}" width="{width:.1f}" '
                     'height="15" rx="2"/>')
        parts.append(f'<text class="small" x="{left + NAMES - 18 + width:.1f}" y="{y + 12}">'
                     f"{form.format(value)}</text>")
    return parts


main()
