// What is drawn: curves, the strip over the slider, the map.

// ---- charts -------------------------------------------------------------------------------------

const NARROW = 480, THIN = 3, EDGE = { left: 44, right: 12, top: 18, bottom: 24 };
function ticks(low, high, most, least = 0) {
  const rough = Math.max((high - low) / most || 1, least), power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough * (1 - 1e-9));
  const found = [];
  for (let at = Math.ceil(low / size - 1e-9) * size; at <= high + size * 1e-9; at += size) found.push(Math.abs(at) < size * 1e-9 ? 0 : at);
  return found;
}
const shares = (marks) => { // percentages with as many digits as it takes to distinguish them
  const digits = [0, 1, 2, 3].find((n) => new Set(marks.map((at) => (100 * at).toFixed(n))).size === marks.length) ?? 4;
  return marks.map((at) => (100 * at).toFixed(digits) + "%");
};
class Chart { // lines over the run; the cursor follows the slider, the pointer moves it
  constructor(svg) {
    this.svg = svg; this.tip = svg.parentNode.querySelector(".tip");
    let held = null; // a finger moves the step when it taps or moves sideways; upwards and downwards it scrolls
    svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      svg.setPointerCapture(event.pointerId);
      held = { x: event.clientX, y: event.clientY, sure: event.pointerType === "mouse" };
      if (held.sure) go(this.stepAt(event));
    });
    svg.addEventListener("pointermove", (event) => {
      const k = this.stepAt(event);
      this.hover(event, k);
      if (held && Math.abs(event.clientX - held.x) > Math.max(8, Math.abs(event.clientY - held.y))) held.sure = true;
      if (held?.sure) go(k);
    });
    svg.addEventListener("pointerup", (event) => { if (held && (held.sure || Math.abs(event.clientY - held.y) <= 8)) go(this.stepAt(event)); held = null; });
    for (const name of ["pointercancel", "pointerleave"]) svg.addEventListener(name, () => { held = null; this.tip.hidden = true; });
  }
  stepAt(event) {
    const box = this.svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * this.wide;
    const goal = this.x0 + ((at - EDGE.left) / (this.wide - EDGE.left - EDGE.right)) * (this.x1 - this.x0);
    let low = 0, high = run.steps; // the axis runs one way, so search for the nearest step
    const rises = this.x1 > this.x0;
    while (low < high) {
      const middle = (low + high) >> 1, value = this.xOf(run, middle);
      if (rises ? value < goal : value > goal) low = middle + 1; else high = middle;
    }
    const near = low > 0 && Math.abs(this.xOf(run, low - 1) - goal) < Math.abs(this.xOf(run, low) - goal) ? low - 1 : low;
    return run.places[run.place(near)];
  }
  hover(event, k) {
    const box = this.svg.getBoundingClientRect(), tip = this.tip;
    tip.textContent = `step ${count(k)}\n` + this.words(k);
    tip.hidden = false;
    const left = event.clientX - box.left;
    tip.style.left = Math.max(0, Math.min(box.width - tip.offsetWidth, left + 14)) + "px";
    tip.style.top = "8px";
  }
  widest(labels) {
    const probes = labels.map((words) => draw("text", {}, words));
    this.svg.append(...probes);
    const width = Math.max(0, ...probes.map((one) => one.getComputedTextLength()));
    for (const one of probes) one.remove();
    return width;
  }
  px(value) { return EDGE.left + ((value - this.x0) / (this.x1 - this.x0 || 1)) * (this.wide - EDGE.left - EDGE.right); }
  py(value) { return this.tall - EDGE.bottom - ((value - this.low) / (this.top - this.low || 1)) * (this.tall - EDGE.top - EDGE.bottom); }
  render({ series, points = [], axis, low = 0, top, format, words }) {
    this.wide = Math.max(240, this.svg.parentNode.clientWidth); // one unit is one pixel
    this.tall = this.wide < NARROW && innerWidth < NARROW ? 165 : 220;
    this.xOf = (one, k) => (axis === "steps" ? k : one.share(axis, k)); this.words = words; this.low = low; this.top = top;
    if (axis === "steps") { this.x0 = 0; this.x1 = Math.max(1, ...RUNS.map((one) => one.steps)); }
    else { this.x0 = 1; this.x1 = Math.min(0.99, ...RUNS.map((one) => one.share(axis, one.steps))); }
    const svg = this.svg, base = this.tall - EDGE.bottom;
    svg.setAttribute("viewBox", `0 0 ${this.wide} ${this.tall}`);
    svg.replaceChildren();
    for (const at of ticks(low, top, 4)) {
      svg.append(draw("line", { class: "grid", x1: EDGE.left, x2: this.wide - EDGE.right, y1: this.py(at), y2: this.py(at) }));
      svg.append(draw("text", { class: "y", x: EDGE.left - 6, y: this.py(at) + 4, "text-anchor": "end" }, format(at)));
    }
    const marks = ticks(Math.min(this.x0, this.x1), Math.max(this.x0, this.x1), this.wide < NARROW ? 5 : 6, axis === "steps" ? 1 : 0);
    const names = axis === "steps" ? marks.map(count) : shares(marks);
    marks.forEach((at, n) => svg.append(draw("text", { class: "x", x: this.px(at), y: base + 17, "text-anchor": "middle" }, names[n])));
    const mark = this.px(this.xOf(run, run.saved));
    svg.append(draw("line", { class: "saved", x1: mark, x2: mark, y1: EDGE.top, y2: base }));
    svg.append(draw("text", { x: Math.min(mark, this.wide - 18), y: 11, "text-anchor": "middle" }, "saved"));
    for (const { of, value, tint, dash, thin } of series) {
      const places = [], last = of.places.length - 1, stride = Math.max(1, last / 700);
      for (let n = 0; n < last; n += stride) places.push(of.places[Math.round(n)]);
      places.push(of.places[last]);
      const path = places.map((k, n) => (n ? "L" : "M") + this.px(this.xOf(of, k)).toFixed(1) + " " + this.py(value(k)).toFixed(1)).join("");
      svg.append(draw("path", { class: "curve", d: path, fill: "none", stroke: `var(${tint})`, "stroke-dasharray": dash || "none", "stroke-width": thin ? 1.3 : 2.2, "stroke-linejoin": "round" }));
    }
    for (const { of, tint, dash, thin, what } of points) {
      const path = of[what].map(([k, a], n) => (n ? "L" : "M") + this.px(this.xOf(of, k)).toFixed(1) + " " + this.py(Math.max(this.low, a)).toFixed(1)).join("");
      if (what !== "timed") svg.append(draw("path", { class: "looks", d: path, fill: "none", stroke: `var(${tint})`, "stroke-width": thin ? 1.5 : 2.2, "stroke-dasharray": dash || "none", "stroke-linejoin": "round" }));
      for (const [k, a] of of[what]) svg.append(draw("circle", { class: what, cx: this.px(this.xOf(of, k)), cy: this.py(Math.max(this.low, a)), r: thin ? 2.5 : 3.5, fill: "var(--card)", stroke: `var(${tint})`, "stroke-width": 1.8 }));
    }
    this.cursor = draw("line", { class: "cursor", y1: EDGE.top, y2: base });
    this.dots = series.filter((one) => one.of === run).map((one) => ({ ...one, dot: draw("circle", { r: 4.5, fill: `var(${one.tint})`, stroke: "var(--card)", "stroke-width": 1.5 }) }));
    svg.append(this.cursor, ...this.dots.map((one) => one.dot));
    this.move();
  }
  move() {
    if (!this.xOf) return; // nothing is drawn
    const x = this.px(this.xOf(run, step));
    this.cursor.setAttribute("x1", x); this.cursor.setAttribute("x2", x);
    for (const { dot, value } of this.dots) { dot.setAttribute("cx", x); dot.setAttribute("cy", this.py(value(step))); }
  }
}
const sizes = new Chart($("chart-size")), costs = new Chart($("chart-cost")), paces = new Chart($("chart-time"));
const box = (tint) => make("i", { class: "box", style: { background: `var(${tint})` } });
function line(tint, dash) {
  const svg = draw("svg", { class: "key", width: 26, height: 6, "aria-hidden": "true" });
  svg.append(draw("line", { x1: 0, x2: 26, y1: 3, y2: 3, stroke: `var(${tint})`, "stroke-width": 2.2, "stroke-dasharray": dash || "none" }));
  return svg;
}
const legend = (holder, entries, key = box) => holder.replaceChildren(...entries.map(([words, ...look]) => make("span", {}, key(...look), words)));
const looks = (one) => ({ of: one, tint: `--c${one.number % 6}`, dash: DASHES[one.number % 5], thin: one !== run });

function curves() {
  const axis = $("axis").value, several = RUNS.length > 1;
  const unit = RUNS.some((one) => one.rounds) ? "bytes" : axis === "parameters" ? "neurons" : "parameters", names = sized(several ? { rounds: unit === "bytes" } : run);
  const ordered = [...RUNS.filter((one) => one !== run), run]; // the one that is shown lies on top
  const plotted = several
    ? ordered.map((one) => ({ ...looks(one), value: (k) => one.share(unit, k) }))
    : Object.keys(names).map((name, n) => ({ of: run, name, tint: `--c${n}`, dash: DASHES[n], value: (k) => run.share(name, k) })).filter((one) => one.name !== axis);
  const alike = ordered.filter((one) => one.scale === run.scale); // J of another method or model is on another scale
  const top = Math.max(0, ...alike.map((one) => one.total[one.steps])) * 1.04;
  EDGE.left = Math.max(44, 10 + sizes.widest(ticks(0, top, 4).map(figure))); // one margin, so that the two charts stand in line
  sizes.render({
    axis, top: 1, format: percent, series: plotted,
    words: (k) => Object.entries(names).map(([name, word]) => `${percent(run.share(name, k))} of the ${word}`).join("\n"),
  });
  latencyLine(axis, ordered.filter((one) => one.times.length));
  legend($("legend-size"), several
    ? RUNS.map(looks).map((one) => [`${one.of.name}, ${names[unit]} kept`, one.tint, one.dash])
    : plotted.map((one) => [`${names[one.name]} kept`, one.tint, one.dash]), line);
  $("chart-cost").parentNode.hidden = !top;
  if (top) costs.render({
    axis, format: figure, top, series: alike.map((one) => ({ ...looks(one), value: (k) => one.total[k] })),
    words: (k) => `${run.sum} ${figure(run.total[k])}` + (k ? `\n${run.what(k - 1)}: ${figure(run.costs[k - 1])}` : ""),
  });
  legend($("legend-cost"), several && top ? RUNS.filter((one) => alike.includes(one)).map(looks).map((one) => [one.of.name, one.tint, one.dash]) : [], line);
  const nothing = top ? "" : run.byHand ? "Actions that are given by hand have no prices. " : run.steps ? "Nothing that was done costs anything. " : "Nothing was done. ";
  $("scale-note").textContent = nothing + (alike.length < RUNS.length ? "Only runs of the same method on the same model are drawn here: J of others is on another scale." : "");
}

function latencyLine(axis, known) { // predicted latency along the run, and what was measured
  $("panel-time").hidden = !known.length;
  if (!known.length) return;
  $("runtimes").textContent = "predicted, in ms; circles are measured: " + [...new Set(known.map((one) => one.runtime))].join("; ");
  paces.render({
    axis, format: figure, top: 1.04 * Math.max(...known.flatMap((one) => [...one.times, ...one.timed.map(([, ms]) => ms)])),
    series: known.map((one) => ({ ...looks(one), value: (k) => one.times[k] })), points: known.map((one) => ({ ...looks(one), what: "timed" })),
    words: (k) => (run.times.length ? `${figure(run.times[k])} ms predicted` + run.timed.filter(([at]) => at === k).map(([, ms]) => `\n${figure(ms)} ms measured`).join("") : ""),
  });
  legend($("legend-time"), RUNS.length > 1 ? known.map(looks).map((one) => [one.of.name, one.tint, one.dash]) : [], line);
}

// ---- strip and map ------------------------------------------------------------------------------

function sharp(canvas, tall) {
  const wide = canvas.clientWidth || 600, ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(wide * ratio); canvas.height = Math.round(tall * ratio); canvas.style.height = tall + "px";
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [pen, wide];
}
let binned = 1; // steps in a bar of the strip
function strip() { // one tick per action, evictions on top; of many actions bars, as high as their distortion
  const [pen, wide] = sharp($("strip"), 14), inset = 8, room = wide - 2 * inset, ends = run.places, slot = room / Math.max(1, ends.length - 1);
  binned = slot < THIN ? Math.ceil(6 / slot) : 1;
  pen.fillStyle = colour("--faint"); pen.fillRect(inset, 0, room, 14);
  if (binned > 1) { stripBars(pen, inset, room); return; }
  for (const [kind, { kind: name }] of Object.entries(ACTIONS)) {
    pen.fillStyle = colour("--" + name);
    for (const t of run.mix[kind]) { // as far along as the slider is
      const n = Math.max(1, below(ends, t + 1)), each = slot / ((ends[n] ?? run.steps) - ends[n - 1] || 1);
      const evicts = run.evictions.has(t), thick = evicts ? Math.max(2, each) : Math.max(0.6, each - (each > 4 ? 1 : 0));
      pen.fillRect(inset + (n - 1) * slot + (t - ends[n - 1]) * each, evicts ? 0 : 4, thick, evicts ? 14 : 10);
    }
  }
}
function stripBars(pen, inset, room) {
  const last = run.steps, found = [];
  for (let low = 0; low < last; low += binned) {
    const high = Math.min(last, low + binned), some = {};
    for (let t = low; t < high; t++) some[run.kinds[t]] = (some[run.kinds[t]] ?? 0) + 1;
    const evicts = [...run.evictions].some((t) => t >= low && t < high), cost = Math.max(0, run.total[high] - run.total[low]);
    found.push({ low, high, evicts, cost, kind: Object.keys(some).sort((a, b) => some[b] - some[a])[0] });
  }
  const most = Math.max(1e-12, ...found.filter((one) => !one.evicts).map((one) => one.cost)), each = room / last;
  for (const { low, high, evicts, cost, kind } of found) {
    const tall = evicts ? 14 : 2 + 12 * Math.min(1, Math.sqrt(cost / most)), name = evicts ? run.kinds[[...run.evictions].find((t) => t >= low && t < high)] : kind;
    pen.fillStyle = colour("--" + ACTIONS[name].kind);
    pen.fillRect(inset + low * each, 14 - tall, Math.max(1, (high - low) * each - 1.5), tall);
  }
}
let picture = null;
const namesOf = (each, tall = 13) => run.layers.map((one, row) => [one.name, row]).filter(([, row]) => row % Math.ceil(tall / each) === 0);
function map() {
  const canvas = $("map"), rows = run.layers.length, each = Math.max(3, Math.min(20, Math.floor(480 / Math.max(1, rows))));
  $("map-names").style.height = rows * each + "px";
  $("map-names").replaceChildren(...namesOf(each).map(([name, row]) => make("span", { title: name, style: { top: row * each + "px", height: Math.max(13, each) + "px" } }, make("bdi", {}, name))));
  const [pen, wide] = sharp(canvas, Math.max(12, rows * each)), columns = Math.min(wide, Math.max(1, run.steps + 1));
  pen.fillStyle = colour("--faint"); pen.fillRect(0, 0, wide, rows * each);
  pen.fillStyle = colour("--accent");
  for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
    const k = columns > 1 ? Math.round((column * run.steps) / (columns - 1)) : 0;
    const share = run.width(row, k) / run.layers[row].neurons;
    if (share <= 0) continue;
    pen.globalAlpha = 0.12 + 0.88 * share;
    pen.fillRect((column * wide) / columns, row * each, wide / columns + 0.6, each - (each > 5 ? 1 : 0));
  }
  pen.globalAlpha = 1;
  picture = { each, rows };
  const marks = ticks(0, run.steps, wide < NARROW ? 3 : 6, 1).filter((at) => at <= run.steps);
  $("map-ticks").replaceChildren(...(run.steps ? marks : []).map((at) => make("span", { style: { left: (100 * (at + 0.5)) / (run.steps + 1) + "%" } }, at ? count(at) : "step 0")));
  mapCursor();
}
function mapCursor() {
  if (!picture) return;
  $("map-step").hidden = !run.steps || !run.layers.length; $("map-layer").hidden = !run.layers.length;
  $("map-step").style.left = (100 * (step + 0.5)) / (run.steps + 1) + "%";
  $("map-layer").style.top = layer * picture.each + "px";
  $("map-layer").style.height = picture.each + "px";
}
function mapCell(event) {
  const box = $("map").getBoundingClientRect();
  const row = Math.max(0, Math.min(run.layers.length - 1, Math.floor((event.clientY - box.top) / picture.each)));
  const k = Math.floor(((event.clientX - box.left) / box.width) * (run.steps + 1));
  return [row, run.places[run.place(k)], box];
}
$("map").addEventListener("pointermove", (event) => {
  if (!run.layers.length) return;
  const [row, k, box] = mapCell(event), tip = $("map").parentNode.querySelector(".tip");
  tip.textContent = `${run.layers[row].name}\nstep ${count(k)}: ${count(run.width(row, k))} of ${count(run.layers[row].neurons)} neurons${run.rounds && !run.isEvicted(row, k) ? `, ${run.bits(row, k)} bits` : ""}`;
  tip.hidden = false;
  tip.style.left = Math.max(0, Math.min(box.width - tip.offsetWidth, event.clientX - box.left + 14)) + "px";
  tip.style.top = Math.max(0, event.clientY - box.top - tip.offsetHeight - 8) + "px";
});
$("map").addEventListener("pointerleave", () => { $("map").parentNode.querySelector(".tip").hidden = true; });
$("map").addEventListener("click", (event) => {
  if (!run.layers.length) return;
  const [row, k] = mapCell(event);
  choose(row); go(k);
});
