"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const KIND = { p: "prune", m: "merge", a: "absorb", e: "evict" };
  const DONE = { p: "pruned", m: "merged", a: "absorbed", e: "evicted" };
  const UNITS = { parameters: "parameters", neurons: "neurons", macs: "MACs" };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // ---- words and numbers --------------------------------------------------------------------------

  const count = (n) => Math.round(n).toLocaleString("en-US");
  const percent = (share) => (100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0) + "%";
  function figure(x) {
    if (x === null || !isFinite(x)) return "∞";
    if (x === 0) return "0";
    const size = Math.abs(x);
    if (size >= 1e5 || size < 1e-3) {
      const [digits, power] = x.toExponential(1).split("e");
      return `${digits}·10${[...power.replace("+", "")].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("")}`;
    }
    return x.toLocaleString("en-US", { maximumSignificantDigits: 3 });
  }
  function small(share) {
    const value = 100 * share;
    return (value >= 10 ? value.toFixed(0) : value >= 0.01 || value === 0 ? String(+value.toPrecision(2)) : "less than 0.01") + "%";
  }
  const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

  function make(tag, props = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) {
      if (name === "class") node.className = value;
      else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
      else node.setAttribute(name, value);
    }
    for (const child of children) node.append(child); // strings become text nodes
    return node;
  }
  function draw(tag, props = {}, words) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
    if (words !== undefined) node.textContent = words;
    return node;
  }

  // ---- a run, added up ----------------------------------------------------------------------------

  function sums(differences) {
    const out = new Float64Array(differences.length);
    let total = 0;
    differences.forEach((value, k) => { total += value; out[k] = total; });
    return out;
  }
  function below(sorted, k) { // how many entries are < k
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < k) low = middle + 1; else high = middle;
    }
    return low;
  }
  class Run {
    constructor(data, number) {
      Object.assign(this, data);
      this.number = number;
      this.steps = data.targets.length;
      for (const unit of Object.keys(UNITS)) this[unit] = sums(data[unit]);
      this.total = sums([0, ...data.costs.map((cost) => cost ?? 0)]);
      this.priced = data.costs.some((cost) => cost !== 0);
      this.energy = data.layers.map((one) => (data.method === "absorb" ? 1 : one.capacities.reduce((sum, c) => sum + (c ?? 0), 0)));
      this.moves = data.layers.map(() => []); // per layer, its steps
      this.lost = data.layers.map(() => [0]); // neurons lost after so many of them
      this.release = new Float64Array(this.steps);
      const last = {};
      for (let t = 0; t < this.steps; t++) {
        const evict = data.kinds[t] === "e", target = data.targets[t], key = (evict ? "b" : "l") + target;
        this.release[t] = last[key] = (last[key] ?? 0) + data.releases[t];
        if (evict) continue;
        const lost = this.lost[target];
        this.moves[target].push(t);
        lost.push(lost[lost.length - 1] + this.going(t).length);
      }
      this.mix = {};
      for (const kind of Object.keys(KIND)) {
        const places = [];
        for (let t = 0; t < this.steps; t++) if (data.kinds[t] === kind) places.push(t);
        this.mix[kind] = places;
      }
    }
    going(t) { return this.several[t] ?? (this.who[t] >= 0 ? [this.who[t]] : []); }
    isGone(layer, k) { const gone = this.layers[layer].gone; return gone !== null && k >= gone; }
    width(layer, k) {
      return this.isGone(layer, k) ? 0 : this.layers[layer].neurons - this.lost[layer][below(this.moves[layer], k)];
    }
    capacity(layer, k) { // share of the layer's capacity that is left; null if not known
      if (!this.left.length) return null;
      if (this.isGone(layer, k)) return 0;
      const made = below(this.moves[layer], k);
      if (!made) return 1;
      const before = this.energy[layer];
      return before > 0 ? Math.max(0, Math.min(1, this.left[this.moves[layer][made - 1]] / before)) : null;
    }
    share(unit, k) { return this[unit][0] ? this[unit][k] / this[unit][0] : 1; }
    name_of(t) { return (this.kinds[t] === "e" ? this.blocks : this.layers)[this.targets[t]].name; }
    what(t) {
      const kind = this.kinds[t], where = this.name_of(t);
      if (kind === "e") return `evict block ${where}`;
      if (kind === "m") return `merge neuron ${this.who[t]} into ${this.into[t]} in ${where}`;
      const some = this.going(t);
      const who = some.length === 1 ? `neuron ${some[0]}` : plural(some.length, "neuron");
      return `${KIND[kind]} ${who} in ${where}`;
    }
    why(t) {
      const kind = this.kinds[t], cost = this.costs[t] ?? Infinity, target = this.targets[t];
      if (!this.priced) return "Asked for by hand; it has no price.";
      if (kind === "e" && this.method === "absorb")
        return `Its branch writes little of what flows on beside it, and ${plural(this.release[t], "parameter")} go at once.`;
      if (kind === "e") {
        const left = this.blocks[target].layers.reduce((sum, layer) => sum + this.width(layer, t), 0);
        return `What its branch of ${plural(left, "neuron")} still adds is small beside what the skip carries, and ${plural(this.release[t], "parameter")} go at once.`;
      }
      const n = this.width(target, t);
      if (this.baseline) return `Its score, ${figure(cost)}, is the lowest that is left in the network.`;
      if (kind === "p") return `It carries ${small(cost / (n + cost))} of the capacity left in its layer (${plural(n, "neuron")}).`;
      if (kind === "m") return `The two do nearly the same: one parent for both misses ${small(cost / n)} of the layer's capacity.`;
      return `The ${plural(n - 1, "neuron")} beside it can stand in for it: ${small(1 - Math.exp(-cost))} of the signal is lost.`;
    }
    at(what, k) { // the last point of "accuracy" or "fidelity" up to k
      let found = null;
      for (const point of this[what]) if (point[0] <= k) found = point;
      return found;
    }
  }
  const RUNS = DATA.runs.map((data, number) => new Run(data, number));
  let run = RUNS[0], step = 0, layer = -1, timer = null;

  // ---- charts -------------------------------------------------------------------------------------

  const WIDE = 640, EDGE = { left: 44, right: 12, top: 18, bottom: 24 };
  function ticks(low, high, most) {
    const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
    const found = [];
    for (let at = Math.ceil(low / size - 1e-9) * size; at <= high + size * 1e-9; at += size) found.push(Math.abs(at) < size * 1e-9 ? 0 : at);
    return found;
  }
  class Chart { // lines over the run; the cursor follows the slider, the pointer moves it
    constructor(svg, tall) {
      this.svg = svg; this.tip = svg.parentNode.querySelector(".tip"); this.tall = tall;
      let held = false;
      svg.addEventListener("pointermove", (event) => { const k = this.stepAt(event); this.hover(event, k); if (held) go(k); });
      svg.addEventListener("pointerdown", (event) => { held = true; go(this.stepAt(event)); });
      addEventListener("pointerup", () => { held = false; });
      svg.addEventListener("pointerleave", () => { this.tip.hidden = true; });
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
      return low > 0 && Math.abs(this.xOf(run, low - 1) - goal) < Math.abs(this.xOf(run, low) - goal) ? low - 1 : low;
    }
    hover(event, k) {
      const box = this.svg.getBoundingClientRect(), tip = this.tip;
      tip.textContent = `step ${count(k)}\n` + this.words(k);
      tip.hidden = false;
      const left = event.clientX - box.left;
      tip.style.left = Math.max(0, Math.min(box.width - tip.offsetWidth, left + 14)) + "px";
      tip.style.top = "8px";
    }
    px(value) { return EDGE.left + ((value - this.x0) / (this.x1 - this.x0 || 1)) * (this.wide - EDGE.left - EDGE.right); }
    py(value) { return this.tall - EDGE.bottom - (value / (this.top || 1)) * (this.tall - EDGE.top - EDGE.bottom); }
    render({ series, points = [], axis, top, format, words }) {
      this.wide = this.svg.parentNode.clientWidth < 480 ? 380 : WIDE;
      this.xOf = (one, k) => (axis === "steps" ? k : one.share(axis, k)); this.words = words; this.top = top;
      if (axis === "steps") { this.x0 = 0; this.x1 = Math.max(1, ...RUNS.map((one) => one.steps)); }
      else { this.x0 = 1; this.x1 = Math.min(0.99, ...RUNS.map((one) => one.share(axis, one.steps))); }
      const svg = this.svg, base = this.tall - EDGE.bottom;
      svg.setAttribute("viewBox", `0 0 ${this.wide} ${this.tall}`);
      svg.replaceChildren();
      for (const at of ticks(0, top, 4)) {
        svg.append(draw("line", { class: "grid", x1: EDGE.left, x2: this.wide - EDGE.right, y1: this.py(at), y2: this.py(at) }));
        svg.append(draw("text", { x: EDGE.left - 6, y: this.py(at) + 4, "text-anchor": "end" }, format(at)));
      }
      for (const at of ticks(Math.min(this.x0, this.x1), Math.max(this.x0, this.x1), this.wide < WIDE ? 4 : 6))
        svg.append(draw("text", { x: this.px(at), y: base + 17, "text-anchor": "middle" }, axis === "steps" ? count(at) : percent(at)));
      const mark = this.px(this.xOf(run, run.saved));
      svg.append(draw("line", { class: "saved", x1: mark, x2: mark, y1: EDGE.top, y2: base }));
      svg.append(draw("text", { x: Math.min(mark, this.wide - 18), y: 11, "text-anchor": "middle" }, "saved"));
      for (const { of, value, tint, thin } of series) {
        const places = [], stride = Math.max(1, of.steps / 700);
        for (let k = 0; k < of.steps; k += stride) places.push(Math.round(k));
        places.push(of.steps);
        const path = places.map((k, n) => (n ? "L" : "M") + this.px(this.xOf(of, k)).toFixed(1) + " " + this.py(value(k)).toFixed(1)).join("");
        svg.append(draw("path", { d: path, fill: "none", stroke: `var(${tint})`, "stroke-width": thin ? 1.3 : 2.2, "stroke-linejoin": "round", opacity: thin ? 0.75 : 1 }));
      }
      for (const { of, tint, what } of points) {
        const path = of[what].map(([k, a], n) => (n ? "L" : "M") + this.px(this.xOf(of, k)).toFixed(1) + " " + this.py(Math.max(0, a)).toFixed(1)).join("");
        svg.append(draw("path", { d: path, fill: "none", stroke: `var(${tint})`, "stroke-width": 1.3, "stroke-dasharray": what === "accuracy" ? "4 3" : "1 3" }));
        for (const [k, a] of of[what]) {
          const dot = draw("circle", { class: what, cx: this.px(this.xOf(of, k)), cy: this.py(Math.max(0, a)), r: what === "accuracy" ? 4 : 2.5, fill: "var(--card)", stroke: `var(${tint})`, "stroke-width": 2 });
          dot.append(draw("title", {}, `${what} ${a.toFixed(3)} at step ${k}`));
          svg.append(dot);
        }
      }
      this.cursor = draw("line", { class: "cursor", y1: EDGE.top, y2: base });
      this.dots = series.filter((one) => one.of === run).map((one) => ({ ...one, dot: draw("circle", { r: 4.5, fill: `var(${one.tint})`, stroke: "var(--card)", "stroke-width": 1.5 }) }));
      svg.append(this.cursor, ...this.dots.map((one) => one.dot));
      this.move();
    }
    move() {
      const x = this.px(this.xOf(run, step));
      this.cursor.setAttribute("x1", x); this.cursor.setAttribute("x2", x);
      for (const { dot, value } of this.dots) { dot.setAttribute("cx", x); dot.setAttribute("cy", this.py(value(step))); }
    }
  }
  const sizes = new Chart($("chart-size"), 250), costs = new Chart($("chart-cost"), 190);
  const legend = (box, entries, shape = "") =>
    box.replaceChildren(...entries.map(([tint, words]) => make("span", {}, make("i", { class: `key ${shape}`, style: { background: `var(${tint})` } }), words)));
  const tintOf = (one) => `--c${one.number % 6}`;

  function curves() {
    const axis = $("axis").value, several = RUNS.length > 1;
    const plotted = several
      ? [...RUNS.filter((one) => one !== run), run].map((one) => ({ of: one, unit: axis === "parameters" ? "neurons" : "parameters", tint: tintOf(one), thin: one !== run }))
      : Object.keys(UNITS).filter((unit) => unit !== axis).map((unit) => ({ of: run, unit, tint: { parameters: "--c0", neurons: "--c1", macs: "--c2" }[unit] }));
    const measured = RUNS.filter((one) => one.accuracy.length);
    const judged = RUNS.filter((one) => one.fidelity.length);
    sizes.render({
      axis, top: 1, format: percent,
      series: plotted.map((one) => ({ ...one, value: (k) => one.of.share(one.unit, k) })),
      points: [...measured.map((one) => ({ of: one, what: "accuracy", tint: several ? tintOf(one) : "--c5" })),
        ...judged.map((one) => ({ of: one, what: "fidelity", tint: several ? tintOf(one) : "--c3" }))],
      words: (k) => Object.entries(UNITS).map(([unit, name]) => `${percent(run.share(unit, k))} of the ${name}`).join("\n") + said(k),
    });
    legend($("legend-size"), several
      ? [...RUNS.map((one) => [tintOf(one), `${one.name}, ${UNITS[plotted[0].unit]} left`]), ...(measured.length ? [["--quiet", "rings: measured accuracy"]] : []), ...(judged.length ? [["--quiet", "small rings: predicted fidelity"]] : [])]
      : [...plotted.map((one) => [one.tint, `${UNITS[one.unit]} left`]), ...(measured.length ? [["--c5", "accuracy, measured"]] : []), ...(judged.length ? [["--c3", "fidelity, predicted without data"]] : [])]);
    const alike = RUNS.filter((one) => one.method === run.method); // J of another method is on another scale
    costs.render({
      axis, format: figure, top: Math.max(1e-12, ...alike.map((one) => one.total[one.steps])) * 1.04,
      series: [...alike.filter((one) => one !== run), run].map((one) => ({ of: one, tint: tintOf(one), thin: one !== run, value: (k) => one.total[k] })),
      words: (k) => `J so far ${figure(run.total[k])}` + (k ? `\n${run.what(k - 1)}: ${figure(run.costs[k - 1])}` : ""),
    });
    legend($("legend-cost"), several ? alike.map((one) => [tintOf(one), one.name]) : []);
    $("scale-note").hidden = alike.length === RUNS.length;
  }
  function said(k) {
    return ["accuracy", "fidelity"].map((what) => [what, run.at(what, k)]).filter(([, point]) => point && point[0] === k)
      .map(([what, point]) => `\n${what} ${point[1].toFixed(3)}`).join("");
  }

  // ---- strip and map ------------------------------------------------------------------------------

  function sharp(canvas, tall) {
    const wide = canvas.clientWidth || 600, ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(wide * ratio); canvas.height = Math.round(tall * ratio); canvas.style.height = tall + "px";
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return [pen, wide];
  }
  function strip() { // one tick per action, evictions on top
    const [pen, wide] = sharp($("strip"), 14), inset = 8, room = wide - 2 * inset, each = room / Math.max(1, run.steps);
    pen.fillStyle = colour("--faint"); pen.fillRect(inset, 0, room, 14);
    for (const kind of "pmae") {
      pen.fillStyle = colour("--" + KIND[kind]);
      const thick = kind === "e" ? Math.max(2, each) : Math.max(0.6, each - (each > 4 ? 1 : 0));
      for (const t of run.mix[kind]) pen.fillRect(inset + t * each, kind === "e" ? 0 : 4, thick, kind === "e" ? 14 : 10);
    }
  }
  let picture = null;
  function map() {
    const canvas = $("map"), rows = run.layers.length, each = Math.max(3, Math.min(18, Math.floor(420 / Math.max(1, rows))));
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
    mapCursor();
  }
  function mapCursor() {
    if (!picture) return;
    $("map-step").style.left = (100 * (step + 0.5)) / (run.steps + 1) + "%";
    $("map-layer").style.top = layer * picture.each + "px";
    $("map-layer").style.height = picture.each + "px";
  }
  function mapSpot(event) {
    const box = $("map").getBoundingClientRect();
    const row = Math.max(0, Math.min(run.layers.length - 1, Math.floor((event.clientY - box.top) / picture.each)));
    const k = Math.floor(((event.clientX - box.left) / box.width) * (run.steps + 1));
    return [row, Math.max(0, Math.min(run.steps, k)), box];
  }
  $("map").addEventListener("pointermove", (event) => {
    if (!run.layers.length) return;
    const [row, k, box] = mapSpot(event), tip = $("map").parentNode.querySelector(".tip");
    tip.textContent = `${run.layers[row].name}\nstep ${count(k)}: ${count(run.width(row, k))} of ${count(run.layers[row].neurons)} neurons`;
    tip.hidden = false;
    tip.style.left = Math.max(0, Math.min(box.width - tip.offsetWidth, event.clientX - box.left + 14)) + "px";
    tip.style.top = Math.max(0, event.clientY - box.top - tip.offsetHeight - 8) + "px";
  });
  $("map").addEventListener("pointerleave", () => { $("map").parentNode.querySelector(".tip").hidden = true; });
  $("map").addEventListener("click", (event) => {
    if (!run.layers.length) return;
    const [row, k] = mapSpot(event);
    choose(row); go(k);
  });

  // ---- the network, layer by layer ----------------------------------------------------------------

  let rows = [], groups = [];
  function network() {
    const box = $("network"), widest = Math.max(1, ...run.layers.map((one) => one.neurons));
    box.replaceChildren(); rows = []; groups = [];
    let holder = box, current = null;
    const group = (number) => {
      const note = make("em", {}), name = make("div", { class: "name" }, run.blocks[number].name, note);
      const node = make("div", { class: "group", title: run.blocks[number].name }, name);
      box.append(node); groups.push({ node, note, number });
      return node;
    };
    run.layers.forEach((one, number) => {
      if (one.block !== current) { holder = one.block === null ? box : group(one.block); current = one.block; }
      const energy = make("span", { class: "energy" }), rest = make("span", { class: "rest" });
      const seen = make("span", { class: "count" }), share = make("span", { class: "share" });
      const bars = make("span", { class: "bars" }, make("span", { class: "full", style: { "--full": 100 * Math.sqrt(one.neurons / widest) + "%" } }, rest, energy));
      const node = make("button", { type: "button", class: "row", "aria-pressed": "false", title: one.name }, make("span", { class: "name" }, one.name), bars, seen, share);
      node.addEventListener("click", () => choose(number));
      holder.append(node); rows.push({ node, rest, energy, seen, share });
    });
    const shown = new Set(groups.map((one) => one.number));
    run.blocks.forEach((_, number) => { if (!shown.has(number)) group(number); });
    $("network-note").textContent = !run.layers.length ? "no layer of it can lose neurons" :
      "green: neurons left" + (run.left.length ? (run.method === "absorb" ? ", blue: signal left" : run.baseline ? ", blue: score left" : ", blue: capacity left") : "");
  }
  function networkNow() {
    rows.forEach(({ node, rest, energy, seen, share }, number) => {
      const one = run.layers[number], left = run.width(number, step), capacity = run.capacity(number, step);
      node.classList.toggle("gone", left === 0);
      node.setAttribute("aria-pressed", String(number === layer));
      rest.style.setProperty("--width", (100 * left) / one.neurons + "%");
      energy.style.setProperty("--energy", capacity === null ? "0%" : 100 * capacity + "%");
      seen.textContent = `${count(left)} / ${count(one.neurons)}`;
      share.textContent = capacity === null ? percent(left / one.neurons) : percent(capacity);
    });
    for (const { node, note, number } of groups) {
      const gone = run.blocks[number].gone, now = gone !== null && step >= gone;
      node.classList.toggle("gone", now);
      note.textContent = now ? `evicted at step ${count(gone)}` : "";
    }
  }
  function choose(number) { layer = number; networkNow(); detail(); mapCursor(); }

  // ---- one layer ----------------------------------------------------------------------------------

  let bars = [];
  function fates() { // neuron -> the step and kind by which it went, up to now; and who took over
    const gone = new Map(), family = new Map();
    if (!run.layers.length) return { gone, family };
    for (const t of run.moves[layer].slice(0, below(run.moves[layer], step))) {
      for (const neuron of run.going(t)) gone.set(neuron, t);
      if (run.kinds[t] === "m") { if (!family.has(run.into[t])) family.set(run.into[t], []); family.get(run.into[t]).push(run.who[t]); }
    }
    return { gone, family };
  }
  function detail() {
    const one = run.layers[layer], svg = $("spectrum");
    $("detail").hidden = !one;
    if (!one) return;
    const { gone, family } = fates(), evicted = run.isGone(layer, step);
    $("h-detail").textContent = one.name;
    $("detail-facts").textContent = `${plural(one.neurons, "neuron")}, ${count(one.fanIn)} weights in and ${count(one.fanOut)} out each, ${one.activation}` +
      (one.also.length ? `; with it goes ${one.also.join(", ")}` : "") + (one.block !== null ? `; in block ${run.blocks[one.block].name}` : "");
    const known = one.capacities.length > 0;
    let entries; // [neuron, value], the largest first
    if (known) entries = one.capacities.map((c, i) => [i, c ?? 0]);
    else {
      const left = new Map();
      for (const t of run.moves[layer]) for (const neuron of run.going(t)) left.set(neuron, run.costs[t] ?? 0);
      entries = [...left];
    }
    entries.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    $("spectrum-title").textContent = known ? (run.baseline ? "Scores, sorted" : "Capacity spectrum: ‖f‖ of each neuron, sorted") : "Cost J at which each neuron leaves, sorted";
    $("spectrum-note").textContent = known ? "As they were in the original network." :
      (run.method === "absorb" ? "Absorption has no capacities" : "This run was saved without capacities") + ", so the spectrum is drawn from the costs at which neurons leave" +
      (entries.length < one.neurons ? `; ${plural(one.neurons - entries.length, "neuron")} never left by an action of its own.` : ".");
    const wide = 420, tall = 130, top = Math.max(1e-12, ...entries.map((e) => e[1])), each = (wide - 8) / Math.max(1, entries.length);
    svg.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
    const paths = { stay: "", p: "", m: "", a: "", e: "" };
    bars = entries.map(([neuron, value], n) => {
      const t = gone.get(neuron), fate = t !== undefined ? run.kinds[t] : evicted ? "e" : "stay";
      const height = Math.max(1, (value / top) * (tall - 12));
      paths[fate] += `M${(4 + n * each).toFixed(2)} ${tall - 2}v${-height.toFixed(2)}h${Math.max(0.3, each - (each > 3 ? 1 : 0)).toFixed(2)}v${height.toFixed(2)}z`;
      return { neuron, value, t, fate };
    });
    svg.replaceChildren(...Object.entries(paths).filter(([, d]) => d).map(([fate, d]) =>
      draw("path", { d, fill: fate === "stay" ? "var(--accent)" : `var(--${KIND[fate]})`, opacity: fate === "stay" ? 1 : 0.45 })));
    const present = ["p", "m", "a", "e"].filter((kind) => paths[kind]);
    legend($("legend-spectrum"), [...(paths.stay ? [["--accent", "still there"]] : []), ...present.map((kind) => ["--" + KIND[kind], DONE[kind]])], "box");
    families(gone, family, evicted);
  }
  $("spectrum").addEventListener("pointermove", (event) => {
    const box = $("spectrum").getBoundingClientRect(), tip = $("spectrum").parentNode.querySelector(".tip");
    const bar = bars[Math.floor(((((event.clientX - box.left) / box.width) * 420 - 4) / 412) * bars.length)];
    tip.hidden = !bar;
    if (!bar) return;
    tip.textContent = `neuron ${bar.neuron}: ${figure(bar.value)}\n${bar.fate === "stay" ? "still there" : DONE[bar.fate] + (bar.t !== undefined ? ` at step ${count(bar.t + 1)}` : "")}`;
    tip.style.left = Math.max(0, Math.min(box.width - tip.offsetWidth, event.clientX - box.left + 12)) + "px";
    tip.style.top = "4px";
  });
  $("spectrum").addEventListener("pointerleave", () => { $("spectrum").parentNode.querySelector(".tip").hidden = true; });

  function families(gone, family, evicted) {
    const list = $("families"), items = [];
    const line = (kind, word, ...words) => items.push(make("li", {}, make("span", { class: "kind", style: { "--kind": `var(--${kind})` } }, word), " ", ...words));
    if (evicted) line("evict", "evicted", `the whole layer, at step ${count(run.layers[layer].gone)}`);
    for (const [parent, dropped] of family) {
      const end = gone.get(parent), name = end === undefined ? make("b", {}, String(parent)) : make("s", {}, String(parent));
      const after = end === undefined ? "" : run.kinds[end] === "m" ? `, then merged into ${run.into[end]}` : `, then ${DONE[run.kinds[end]]}`;
      line("merge", "merged", name, ` ← ${dropped.join(", ")}${after}`);
    }
    const simple = (kind) => [...gone].filter(([, t]) => run.kinds[t] === kind);
    const pruned = simple("p").filter(([neuron]) => !family.has(neuron)).map(([neuron]) => neuron);
    if (pruned.length) line("prune", "pruned", pruned.join(", "));
    const absorbed = simple("a");
    for (const [neuron, t] of absorbed.slice(-60).reverse()) {
      const by = run.takers[t];
      line("absorb", "absorbed", make("b", {}, String(neuron)), by && by.length ? " → mostly " + by.map(([j, share]) => `${j} (${share > 0 ? "" : "−"}${Math.abs(share).toFixed(2)})`).join(", ") : " → all that were left");
    }
    if (absorbed.length > 60) line("absorb", "absorbed", `and ${absorbed.length - 60} before them`);
    if (!items.length) items.push(make("li", { class: "quiet" }, "Nobody has left this layer yet."));
    list.replaceChildren(...items);
  }

  // ---- everything else that follows the slider ----------------------------------------------------

  function tiles() {
    const entries = Object.entries(UNITS).map(([unit, name]) => [percent(run.share(unit, step)), `of the ${name}`, `${count(run[unit][step])} of ${count(run[unit][0])}`, run.share(unit, step)]);
    const whole = run.total[run.steps];
    entries.push([figure(run.total[step]), "distortion so far", run.priced ? "sum of J" : "no prices: made by hand", whole ? run.total[step] / whole : 0]);
    for (const [what, found] of [["accuracy", "measured"], ["fidelity", "predicted"]]) {
      if (!run[what].length) continue;
      const point = run.at(what, step), after = run[what].find(([k]) => k > step);
      if (point && point[0] === step) entries.push([percent1(point[1]), what, `${found} here`, point[1]]);
      else if (point && after) entries.push([`${(100 * point[1]).toFixed(0)} … ${percent(after[1])}`, what, `${found} at steps ${count(point[0])} and ${count(after[0])}`, Math.min(point[1], after[1])]);
      else { const near = point ?? after; entries.push([percent1(near[1]), what, `${found} at step ${count(near[0])}, not here`, near[1]]); }
    }
    $("tiles").replaceChildren(...entries.map(([value, name, more, share]) =>
      make("div", { class: "tile" }, make("b", {}, value), make("span", {}, name), make("br"), make("span", {}, more), make("i", { style: { "--share": 100 * share + "%" } }))));
  }
  const percent1 = (share) => (100 * share).toFixed(1) + "%";
  function upcoming() {
    const items = [];
    for (let t = step; t < Math.min(run.steps, step + 4); t++) {
      const each = run.release[t] ? (run.costs[t] ?? Infinity) / run.release[t] : null;
      const figures = run.priced
        ? [`J ${figure(run.costs[t])}`, `ΔP ${count(run.release[t])}`, each === null ? "" : `J/ΔP ${figure(each)}`].filter(Boolean)
        : [];
      const title = run.what(t);
      items.push(make("li", { style: { "--kind": `var(--${KIND[run.kinds[t]]})` } },
        make("div", { class: "what" }, title[0].toUpperCase() + title.slice(1)),
        make("div", { class: "why" }, run.why(t)),
        make("div", { class: "figures" }, ...figures.map((words) => make("span", {}, words)))));
    }
    if (step + 4 >= run.steps) items.push(make("li", { class: "end quiet" }, "The run ends here: encode with a smaller budget to go on."));
    $("next").replaceChildren(...items);
  }
  function mix() {
    const so = Object.keys(KIND).map((kind) => [kind, below(run.mix[kind], step)]).filter(([, n]) => n);
    $("mix-bar").replaceChildren(...so.map(([kind, n]) => make("i", { style: { width: (100 * n) / Math.max(1, step) + "%", background: `var(--${KIND[kind]})` } })));
    const words = so.map(([kind, n]) => ["--" + KIND[kind], `${count(n)} ${DONE[kind]}`]);
    $("mix-bar").setAttribute("aria-label", words.map(([, w]) => w).join(", ") || "nothing yet");
    if (words.length) legend($("mix"), words, "box"); else $("mix").textContent = "Nothing yet: this is the original.";
  }
  function command() {
    const at = step === run.saved;
    $("command").textContent = at ? run.command.saved : `${run.command.before} --steps ${step} ${run.command.after}`;
    const fill = run.command.complete || (at && !run.command.saved.includes(" MODEL ")) ? "" : "Put your own names where there are capitals. ";
    $("command-note").textContent = fill + (at ? "This is the saved model: the original weights are not needed." : "Replayed on the original weights.");
  }

  function update() {
    $("slider").value = String(step);
    $("step").textContent = count(step);
    const last = step ? run.what(step - 1) : "the original network";
    $("now").textContent = step ? "last: " + last : last;
    $("slider").setAttribute("aria-valuetext", `step ${step} of ${run.steps}, ${percent(run.share("parameters", step))} of the parameters, ${last}`);
    $("saved").disabled = step === run.saved;
    tiles(); sizes.move(); costs.move(); upcoming(); mix(); command(); networkNow(); detail(); mapCursor();
    remember();
  }
  let frame = 0;
  function go(k, now) {
    const next = Math.max(0, Math.min(run.steps, Math.round(k)));
    if (next === step && !now) return;
    step = next;
    if (now) { update(); return; }
    $("slider").value = String(step);
    if (!frame) frame = requestAnimationFrame(() => { frame = 0; update(); });
  }
  let later = 0;
  function remember() {
    clearTimeout(later);
    later = setTimeout(() => { try { history.replaceState(null, "", `#run=${run.number}&step=${step}`); } catch { /* not allowed here */ } }, 300);
  }
  function show(number, k) {
    stop();
    run = RUNS[number]; step = Math.max(0, Math.min(run.steps, k));
    if (layer < 0 || layer >= run.layers.length) layer = run.moves.reduce((best, moves, n) => (moves.length > run.moves[best].length ? n : best), 0);
    $("title").textContent = run.model;
    $("subtitle").textContent = `made smaller by ${run.method}${RUNS.length > 1 && run.name !== run.method ? ` (${run.name})` : ""}: ${plural(run.steps, "step")}, saved after ${count(run.saved)}`;
    $("total").textContent = count(run.steps);
    $("slider").max = String(run.steps);
    network(); strip(); map(); curves(); alone(); go(step, true);
  }
  function alone() {
    const table = (head, body) => {
      const node = make("table", {}, make("thead", {}, make("tr", {}, ...head.map(([words, number]) => make("th", number ? { class: "number" } : {}, words)))));
      node.append(make("tbody", {}, ...body.map((cells) => make("tr", {}, ...cells.map((cell, n) => make("td", { ...(head[n][1] ? { class: "number" } : {}), "data-head": head[n][0] }, String(cell)))))));
      return node;
    };
    const parts = [];
    const together = (list, same) => { // one row per reason
      const found = new Map();
      for (const one of list) { const key = JSON.stringify(same(one)); if (!found.has(key)) found.set(key, []); found.get(key).push(one); }
      return [...found.values()];
    };
    const names = (list) => list.map((one) => one[0]).join(", ");
    if (run.skipped.length) parts.push(table([["what"], ["kind"], ["outputs", true], ["why"]],
      together(run.skipped, ([, kind, , why]) => [kind, why]).map((list) => [names(list), list[0][1], count(list.reduce((sum, one) => sum + one[2], 0)), list[0][3]])));
    if (run.leftAlone.length) parts.push(make("h3", {}, `Left alone by ${run.method}`),
      table([["what"], ["why"]], together(run.leftAlone, ([, why]) => why).map((list) => [names(list), list[0][1]])));
    if (!parts.length) parts.push(make("p", { class: "quiet" }, "Nothing: all of the network can be compressed."));
    $("alone").replaceChildren(...parts);
  }

  // ---- controls -----------------------------------------------------------------------------------

  function stop() { clearInterval(timer); timer = null; $("play").textContent = "▶"; $("play").setAttribute("aria-label", "Play the run"); }
  $("play").addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (step >= run.steps) go(0, true);
    $("play").textContent = "❚❚"; $("play").setAttribute("aria-label", "Pause");
    const stride = Math.max(1, Math.round(run.steps / 240));
    timer = setInterval(() => { if (step >= run.steps) stop(); else go(step + stride); }, Math.max(40, 9000 / Math.max(1, run.steps)));
  });
  $("slider").addEventListener("input", () => { stop(); go(Number($("slider").value)); });
  $("saved").addEventListener("click", () => { stop(); go(run.saved); });
  $("axis").addEventListener("change", curves);
  $("copy").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText($("command").textContent); $("copy").textContent = "Copied"; }
    catch { getSelection().selectAllChildren($("command")); $("copy").textContent = "Selected"; }
    setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
  });
  addEventListener("keydown", (event) => { // arrows work wherever they mean nothing else
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    if (event.key === "ArrowRight") go(step + 1); else if (event.key === "ArrowLeft") go(step - 1); else return;
    stop(); event.preventDefault();
  });
  const redraw = () => { strip(); map(); curves(); };
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 80); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", redraw); addEventListener("afterprint", redraw);

  if (RUNS.length > 1) {
    $("runs").hidden = false;
    for (const one of RUNS) {
      const input = make("input", { type: "radio", name: "run", value: String(one.number) });
      input.addEventListener("change", () => { // the same share of parameters, so that runs can be compared
        const share = run.share("parameters", step);
        let k = 0;
        while (k < one.steps && one.share("parameters", k) > share) k++;
        show(one.number, k);
      });
      $("runs").append(make("label", {}, input, one.name));
    }
    $("axis").value = "parameters";
  }
  $("made").textContent = `Written by hope ${DATA.version}. Everything on this page is in this file.`;
  const asked = new URLSearchParams(location.hash.slice(1)), first = Math.max(0, Math.min(RUNS.length - 1, Number(asked.get("run")) || 0));
  const inputs = $("runs").querySelectorAll("input");
  if (inputs.length) inputs[first].checked = true;
  show(first, asked.has("step") ? Number(asked.get("step")) || 0 : RUNS[first].saved);
})();
