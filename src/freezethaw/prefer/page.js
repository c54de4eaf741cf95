"use strict";
// The page shows what the session knows; every answer goes there and comes back as a new state.

const $ = (id) => document.getElementById(id);
const BOX = { left: 64, right: 620, top: 16, bottom: 318 };
let state = null;
let busy = false;
let asksMore = false; // past the point where the session thinks that it knows enough

async function load() {
  try {
    show(await (await fetch("state")).json());
    $("error").hidden = true;
  } catch {
    gone();
  }
}

async function act(request) {
  if (busy || !state) return;
  busy = true;
  try {
    const reply = await fetch("act", {
      method: "POST",
      body: JSON.stringify({ n: state.n, ...request }),
    });
    const found = await reply.json();
    if (found.error) return complain(found.error);
    if (reply.status === 409) complain("Another tab has answered meanwhile; here is the present question.");
    else $("error").hidden = true;
    show(found);
  } catch {
    gone();
  } finally {
    busy = false;
  }
}

function complain(text) {
  $("error").textContent = text;
  $("error").hidden = false;
}

function gone() {
  if (state && state.finished) return;
  for (const button of document.querySelectorAll("button")) button.disabled = true;
  complain("freezethaw is not running any more. Your answers are saved; start the same command to go on.");
}

function show(found) {
  const before = state;
  state = found;
  if (before && found.n < before.n) asksMore = false;
  for (const button of document.querySelectorAll("button")) button.disabled = false;
  const over = found.finished || !found.question || ((found.enough || found.rest) && !asksMore);
  $("question").hidden = over;
  $("end").hidden = !over;
  $("heading").textContent = over ? "What your answers say" : "Which would you rather have?";
  $("progress").textContent = over
    ? `${plural(found.n, "answer")}.`
    : `Question ${found.n + 1} of at most ${Math.max(found.most, found.n + 1)}` +
      (found.n ? `; about ${found.doubt} of choices still in doubt.` : ".");
  if (!over) {
    fillCard("first", found.question[0]);
    fillCard("second", found.question[1]);
  }
  $("undo").disabled = found.n === 0;
  $("done").disabled = found.n === 0;
  $("back").hidden = found.finished || found.n === 0;
  $("more").hidden = found.finished || !found.question;
  $("finish").hidden = found.finished;
  $("end-text").textContent = endText(found);
  $("sentence").textContent = found.sentence || "";
  $("path").textContent = found.path;
  list("remarks", found.remarks);
  list("answers", found.asked.map(told));
  draw(found, over);
  if (before && before.n !== found.n) $("heading").focus({ preventScroll: true });
}

function plural(n, word) {
  return `${n} ${word}${n === 1 ? "" : "s"}`;
}

function endText(found) {
  if (found.finished) return `Done. You can close this page.\nft.tune(…, utility="${found.path}")`;
  if (!found.question) return "Every pair has been asked.";
  if (found.enough) return "That is enough: another answer would hardly change a choice.";
  return `${plural(found.n, "answer")}; about ${found.doubt} of choices still in doubt.`;
}

function told(answer) {
  const [one, other] = answer.text;
  if (answer.choice === "tie") return `${one} or ${other}: cannot say`;
  return answer.choice === "first" ? `${one} rather than ${other}` : `${other} rather than ${one}`;
}

function fillCard(id, outcome) {
  const [score, name, cost] = $(id).querySelectorAll("b, span, i");
  score.textContent = outcome.score;
  name.textContent = state.metric;
  cost.textContent = `for ${outcome.cost}`;
  $(id).setAttribute("aria-label", `${state.metric} ${outcome.score} for ${outcome.cost}`);
}

function list(id, texts) {
  $(id).replaceChildren(...texts.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

// ── the chart: y is the score, x the cost, both as shares ────────────────────────────────────────

const px = (x) => BOX.left + x * (BOX.right - BOX.left);
const py = (y) => BOX.bottom - y * (BOX.bottom - BOX.top);

function mark(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function draw(found, over) {
  const marks = [mark("path", { class: "axis", d: `M${BOX.left} ${BOX.top}V${BOX.bottom}H${BOX.right}` })];
  const { cost, score } = found.axes;
  marks.push(mark("text", { x: BOX.left - 8, y: BOX.bottom, "text-anchor": "end" }, score[0]));
  marks.push(mark("text", { x: BOX.left - 8, y: BOX.top + 10, "text-anchor": "end" }, score[1]));
  marks.push(mark("text", { x: BOX.left, y: BOX.bottom + 20 }, cost[0]));
  marks.push(mark("text", { x: BOX.right, y: BOX.bottom + 20, "text-anchor": "end" }, cost[1]));
  $("curves").replaceChildren(...(found.curves ? indifference(found.curves) : []));
  for (const { points } of found.asked) {
    const [[x1, y1], [x2, y2]] = points;
    marks.push(mark("line", { class: "link", x1: px(x1), y1: py(y1), x2: px(x2), y2: py(y2) }));
    for (const [x, y] of points) marks.push(mark("circle", { class: "was", cx: px(x), cy: py(y), r: 3 }));
  }
  if (!over)
    found.question.forEach(({ place: [x, y] }, i) => {
      const kind = i ? "now-second" : "now-first";
      marks.push(mark("circle", { class: kind, cx: px(x), cy: py(y), r: 8 }));
      const side = x > 0.9 ? { "text-anchor": "end", x: px(x) - 12 } : { x: px(x) + 12 };
      marks.push(mark("text", { class: "now-label", y: py(y) + 5, ...side }, String(i + 1)));
    });
  $("marks").replaceChildren(...marks);
  $("chart-title").textContent = "Score against cost. " + (found.sentence || "No answers yet.");
}

function indifference({ x, price, low, high }) {
  const marks = [];
  const path = (values, level) => x.map((at, i) => `${px(at)} ${py(level + values[i])}`);
  for (const level of [0, 0.2, 0.4, 0.6, 0.8]) {
    const around = [...path(low, level), ...path(high, level).reverse()];
    marks.push(mark("path", { class: "band", d: `M${around.join("L")}Z` }));
    marks.push(mark("path", { class: "curve", d: `M${path(price, level).join("L")}` }));
  }
  return marks;
}

// ── keys, taps, other tabs ───────────────────────────────────────────────────────────────────────

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button || button.disabled) return;
  if (button.dataset.choice) act({ do: "answer", choice: button.dataset.choice });
  else if (button.id === "undo" || button.id === "back") act({ do: "undo" });
  else if (button.id === "done" || button.id === "finish") act({ do: "done" });
  else if (button.id === "more") {
    asksMore = true;
    show(state);
  }
});

document.addEventListener("keydown", (event) => {
  if (!state || state.finished || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const choices = { 1: "first", 2: "second", 0: "tie", ArrowLeft: "first", ArrowRight: "second" };
  if (event.key in choices && !$("question").hidden) act({ do: "answer", choice: choices[event.key] });
  else if (event.key.toLowerCase() === "u") act({ do: "undo" });
  else return;
  event.preventDefault();
});

setInterval(() => {
  if (!busy && document.visibilityState === "visible" && state && !state.finished) watch();
}, 2000);

async function watch() {
  try {
    const found = await (await fetch("state")).json();
    const back = $("first").disabled; // it was away, and runs again at this address
    if (back) $("error").hidden = true;
    if (!busy && (back || found.n !== state.n || found.finished !== state.finished)) show(found);
  } catch {
    gone();
  }
}

load();
