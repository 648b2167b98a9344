// The console's page: takes what the server sends into its sections, says when the server is gone
// and comes back by itself, and draws which blocks a manifest picks.
"use strict";

const RETRY_MS_MIN = 1000;
const RETRY_MS_MAX = 15000;
// The server sends something every second.
const SILENCE_MS_MAX = 5000;
const SVG = "http://www.w3.org/2000/svg";
// Beyond so many blocks one cell stands for several.
const CELLS_MAX = 16384;

const link = document.getElementById("link");
let retryMs = RETRY_MS_MIN;
let lastNews = 0;
let silence = 0;

function connect() {
  const events = new EventSource("events");
  events.onmessage = (message) => {
    retryMs = RETRY_MS_MIN;
    lastNews = Date.now();
    show(JSON.parse(message.data));
    tell("live", "live");
    watch(events);
  };
  events.onerror = () => retry(events);
  watch(events);
}

// A connection can die without a word.
function watch(events) {
  clearTimeout(silence);
  silence = setTimeout(() => retry(events), SILENCE_MS_MAX);
}

// Not left to EventSource: it gives up for good where it is refused.
function retry(events) {
  clearTimeout(silence);
  events.onerror = null;
  events.onmessage = null;
  events.close();
  const since = lastNews ? ` since ${new Date(lastNews).toLocaleTimeString()}` : "";
  tell("gone", `server gone${since}, trying again`);
  setTimeout(connect, retryMs);
  retryMs = Math.min(retryMs * 2, RETRY_MS_MAX);
}

function tell(state, text) {
  if (link.textContent !== text) {
    link.textContent = text;
  }
  link.className = `link ${state}`;
  document.body.classList.toggle("is-gone", state === "gone");
}

// The server escapes every text in them; details that are open stay so.
function show(event) {
  for (const [id, html] of Object.entries(event.sections)) {
    const section = document.getElementById(id);
    if (!section) {
      continue;
    }
    const open = [...section.querySelectorAll("details")].map((details) => details.open);
    const scrolled = [...section.querySelectorAll(".scroll")].map((it) => it.scrollTop);
    section.innerHTML = html;
    section.querySelectorAll("details").forEach((details, at) => {
      details.open = open[at] ?? details.open;
    });
    section.querySelectorAll(".scroll").forEach((it, at) => {
      it.scrollTop = scrolled[at] || 0;
    });
  }
}

const form = document.getElementById("ask");
const blocks = document.getElementById("blocks");
let asked = 0;

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});

document.getElementById("priors").addEventListener("click", (event) => {
  const pick = event.target.closest("[data-prefix]");
  if (pick) {
    form.elements.prefix.value = pick.dataset.prefix;
    ask();
  }
});

async function ask() {
  const question = new URLSearchParams({
    prefix: form.elements.prefix.value,
    k: form.elements.k.value || "0",
    policy: form.elements.policy.value,
  });
  const mine = ++asked;
  let answer;
  try {
    const response = await fetch(`manifest?${question}`);
    answer = response.headers.get("content-type")?.startsWith("application/json")
      ? await response.json()
      : { error: await response.text() };
  } catch {
    answer = { error: "the server does not answer" };
  }
  // A later question may have been answered first.
  if (mine === asked) {
    blocks.replaceChildren(...(answer.error ? [paragraph("error", answer.error)] : drawn(answer)));
  }
}

function drawn(answer) {
  const picked = answer.blocks;
  const head = paragraph("", `${picked.length} of ${answer.total_blocks} blocks`);
  const how = [answer.provenance.replace("_", " "), answer.algorithm, answer.policy];
  if (answer.generation) {
    how.push(`generation ${answer.generation}`);
  }
  if (answer.heads) {
    how.push(`each of ${answer.heads} heads picks its own: the darker, the more heads`);
  }
  if (answer.reason) {
    how.push(`not as asked: ${answer.reason.replaceAll("_", " ")}`);
  }
  const more = paragraph("note", how.filter(Boolean).join(" · "));
  return [head, map(answer), more, paragraph("listed", ranges(picked))];
}

// One path for each shade, whatever the number of blocks.
function map(answer) {
  const each = Math.ceil(answer.total_blocks / CELLS_MAX);
  const cells = Math.ceil(answer.total_blocks / each);
  const wide = Math.max(16, Math.min(128, Math.ceil(Math.sqrt(cells * 2.5))));
  const shades = new Array(cells).fill("b-rest");
  answer.blocks.forEach((block, at) => {
    const share = answer.heads ? answer.heads_of[at] / answer.heads : 1;
    const shade = !answer.heads ? "b-all" : share > 0.5 ? "b-3" : share > 0.2 ? "b-2" : "b-1";
    const cell = Math.floor(block / each);
    if (shade > shades[cell] || shades[cell] === "b-rest") {
      shades[cell] = shade;
    }
  });
  const paths = {};
  shades.forEach((shade, cell) => {
    const x = cell % wide;
    const y = Math.floor(cell / wide);
    paths[shade] = `${paths[shade] || ""}M${x + 0.06} ${y + 0.06}h.88v.88h-.88z`;
  });
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "blocks");
  svg.setAttribute("viewBox", `0 0 ${wide} ${Math.ceil(cells / wide)}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${answer.blocks.length} of ${answer.total_blocks} blocks`);
  for (const [shade, path] of Object.entries(paths)) {
    const drawn = document.createElementNS(SVG, "path");
    drawn.setAttribute("class", shade);
    drawn.setAttribute("d", path);
    svg.append(drawn);
  }
  return svg;
}

// 0, 3–5, 9
function ranges(numbers) {
  const parts = [];
  for (let at = 0; at < numbers.length; at += 1) {
    const first = numbers[at];
    while (numbers[at + 1] === numbers[at] + 1) {
      at += 1;
    }
    const last = numbers[at];
    parts.push(first === last ? `${first}` : `${first}–${last}`);
  }
  return parts.join(", ");
}

function paragraph(kind, text) {
  const made = document.createElement("p");
  made.className = kind;
  made.textContent = text;
  return made;
}

connect();
