// What follows the slider, and the controls.

// ---- the network, layer by layer ----------------------------------------------------------------

let rows = [], groups = [];
function network() {
  const box = $("network"), widest = Math.max(1, ...run.layers.map((one) => one.neurons));
  box.replaceChildren(); rows = []; groups = [];
  let holder = box, current = null;
  const group = (number) => {
    const note = make("em", {}), name = make("div", { class: "name" }, run.blocks[number].name, note);
    const node = make("div", { class: "group" + (run.blocks[number].layers.length === 1 ? " single" : ""), title: run.blocks[number].name }, name);
    box.append(node); groups.push({ node, note, number });
    return node;
  };
  run.layers.forEach((one, number) => {
    if (one.block !== current) { holder = one.block === null ? box : group(one.block); current = one.block; }
    const energy = make("span", { class: "energy" }), rest = make("span", { class: "rest" });
    const seen = make("span", { class: "count" }), bits = make("span", { class: "bits" }), share = make("span", { class: "share" });
    const bars = make("span", { class: "bars" }, make("span", { class: "full", style: { "--full": 100 * Math.sqrt(one.neurons / widest) + "%" } }, rest, energy));
    const node = make("button", { type: "button", class: "row", "aria-pressed": "false", title: one.name }, make("span", { class: "name" }, make("bdi", {}, one.name)), bars, seen, ...(run.rounds ? [bits] : []), share);
    node.addEventListener("click", () => choose(number));
    holder.append(node); rows.push({ node, rest, energy, seen, bits, share });
  });
  const shown = new Set(groups.map((one) => one.number));
  run.blocks.forEach((_, number) => { if (!shown.has(number)) group(number); });
  const known = run.layers.some((_, number) => run.keeps(number, 0) !== null), what = run.baseline ? "score" : "capacity";
  $("network-note").textContent = !run.layers.length ? "no layer can lose neurons" : "green: neurons kept" + (known ? `, blue: ${what} kept` : "");
  $("layers").classList.toggle("rounded", run.rounds);
  box.classList.toggle("long", run.layers.length > 14);
  if (run.layers.length) box.before($("heading") ?? make("div", { id: "heading" }));
  heading(known ? `${what} kept` : "neurons kept");
}
function heading(words) {
  const entries = () => make("div", { class: "heading", "aria-hidden": "true" }, make("span", {}, "layer"), make("span", {}), make("span", {}, "neurons"), ...(run.rounds ? [make("span", {}, "bits")] : []), make("span", {}, words));
  $("heading")?.replaceChildren(...(run.layers.length > 14 ? [entries(), entries()] : [entries()]));
}
function networkNow() {
  rows.forEach(({ node, rest, energy, seen, bits, share }, number) => {
    const one = run.layers[number], left = run.width(number, step), capacity = run.keeps(number, step);
    node.classList.toggle("removed", left === 0);
    node.setAttribute("aria-pressed", String(number === layer));
    rest.style.setProperty("--width", (100 * left) / one.neurons + "%");
    energy.style.setProperty("--energy", capacity === null ? "0%" : 100 * capacity + "%");
    seen.textContent = `${count(left)} / ${count(one.neurons)}`;
    if (run.rounds) bits.textContent = run.bits(number, step);
    share.textContent = capacity === null ? percent(left / one.neurons) : percent(capacity);
  });
  whole();
  for (const { node, note, number } of groups) {
    const removed = run.blocks[number].evicted, now = removed !== null && step >= removed;
    node.classList.toggle("removed", now);
    note.textContent = now ? `evicted at step ${count(removed)}` : "";
  }
}
function whole() { // the network in one line: with evicted layers
  const all = run.layers.map((_, number) => number), shares = all.map((number) => run.keeps(number, step)).filter((share) => share !== null);
  const mean = (list) => list.reduce((sum, value) => sum + value, 0) / list.length, removed = all.filter((number) => run.isEvicted(number, step)).length;
  const what = run.baseline ? "Score kept" : "Capacity kept", own = run.baseline ? "of the scores of a layer" : "of the capacity Σ‖f‖ of a layer";
  const parts = [];
  if (shares.length) parts.push(`Layers keep ${percent(mean(shares))} of their ${run.baseline ? "scores" : "capacity"} on average.`);
  if (removed) parts.push(`${plural(removed, "layer")} of ${count(all.length)} ${removed === 1 ? "is" : "are"} removed with evicted blocks.`);
  if (run.relative && run.left.length) parts.push(`With the compensation they keep ${percent(mean(all.map((number) => run.capacity(number, step))))} of their signal.`);
  $("whole").textContent = parts.join(" ");
  const rounded = run.rounds && all.length ? " Bits are those of the weights whose outputs these neurons are; other weights are rounded in steps of their own." : "";
  $("kept-note").textContent = (shares.length ? `${what}: the share ${own} that its kept neurons had in the original, without what they compensate for.` : "") + rounded;
}
function choose(number) { layer = number; networkNow(); detail(); mapCursor(); }

// ---- one layer ----------------------------------------------------------------------------------

let bars = [];
function removals() { // neuron -> the step that removed it, up to now; and parent -> merged neurons
  const removed = new Map(), family = new Map();
  if (!run.layers.length) return { removed, family };
  for (const t of run.moves[layer].slice(0, below(run.moves[layer], step))) {
    for (const neuron of run.going(t, layer)) removed.set(neuron, t);
    if (run.into[t] >= 0) { if (!family.has(run.into[t])) family.set(run.into[t], []); family.get(run.into[t]).push(run.who[t]); }
  }
  return { removed, family };
}
function detail() {
  const one = run.layers[layer], svg = $("spectrum");
  $("detail").hidden = !one;
  if (!one) return;
  const { removed, family } = removals(), evicted = run.isEvicted(layer, step);
  $("h-detail").textContent = one.name;
  $("detail-facts").textContent = `${plural(one.neurons, "neuron")}, ${count(one.fanIn)} weights in and ${count(one.fanOut)} out each, ${one.activation}` +
    (one.also.length ? `; removed with it: ${one.also.join(", ")}` : "") + (one.block !== null ? `; in block ${run.blocks[one.block].name}` : "");
  const kept = run.keeps(layer, step);
  $("detail-left").textContent = kept === null ? "" : `Kept: ${count(run.width(layer, step))} of ${count(one.neurons)} neurons, with ${percent(kept)} of the ${run.baseline ? "scores" : "capacity"}. ${run.account(layer, step)}`;
  const known = one.capacities.length > 0;
  let entries; // [neuron, value], the largest first
  if (known) entries = one.capacities.map((c, i) => [i, c ?? 0]);
  else {
    const left = new Map();
    for (const t of run.moves[layer]) for (const neuron of run.going(t, layer)) left.set(neuron, run.costs[t] ?? 0);
    entries = [...left];
  }
  entries.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  const priced = entries.length && !(run.byHand && !known);
  svg.parentNode.hidden = !priced;
  $("spectrum-title").textContent = known ? (run.baseline ? "Scores, sorted" : "Capacity spectrum: ‖f‖ of each neuron, sorted") : priced ? "Cost J at which each neuron is removed, sorted" : "Capacity spectrum";
  $("spectrum-note").textContent = known ? "As they were in the original network." :
    `${run.byHand ? "Runs that are made by hand have no capacities" : "The capacities of this layer are not known"}: ` +
    (!priced ? "there is nothing to draw." : "the chart has the costs at which neurons are removed" + (entries.length < one.neurons ? `; ${plural(one.neurons - entries.length, "neuron")} without an action of its own.` : "."));
  const wide = 420, tall = 130, top = Math.max(1e-12, ...entries.map((e) => e[1])), each = (wide - 8) / Math.max(1, entries.length);
  svg.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
  const paths = Object.fromEntries(["stay", ...Object.keys(ACTIONS)].map((outcome) => [outcome, ""]));
  bars = entries.map(([neuron, value], n) => {
    const t = removed.get(neuron), outcome = t !== undefined ? run.kinds[t] : evicted ? run.kinds[one.evicted - 1] : "stay";
    const height = Math.max(1, (value / top) * (tall - 12));
    paths[outcome] += `M${(4 + n * each).toFixed(2)} ${tall - 2}v${-height.toFixed(2)}h${Math.max(0.3, each - (each > 3 ? 1 : 0)).toFixed(2)}v${height.toFixed(2)}z`;
    return { neuron, value, t, outcome };
  });
  svg.replaceChildren(...Object.entries(paths).filter(([, d]) => d).map(([outcome, d]) =>
    draw("path", { d, fill: outcome === "stay" ? "var(--accent)" : `var(--${ACTIONS[outcome].kind})`, opacity: outcome === "stay" ? 1 : 0.85 })));
  const present = Object.keys(ACTIONS).filter((kind) => paths[kind]);
  legend($("legend-spectrum"), !priced ? [] : [...(paths.stay ? [["kept", "--accent"]] : []), ...present.map((kind) => [ACTIONS[kind].done, "--" + ACTIONS[kind].kind])]);
  families(removed, family, evicted);
}
$("spectrum").addEventListener("pointermove", (event) => {
  const box = $("spectrum").getBoundingClientRect(), tip = $("spectrum").parentNode.querySelector(".tip");
  const bar = bars[Math.floor(((((event.clientX - box.left) / box.width) * 420 - 4) / 412) * bars.length)];
  tip.hidden = !bar;
  if (!bar) return;
  tip.textContent = `neuron ${bar.neuron}: ${figure(bar.value)}\n${bar.outcome === "stay" ? "kept" : ACTIONS[bar.outcome].done + (bar.t !== undefined ? ` at step ${count(bar.t + 1)}` : "")}`;
  tip.style.left = Math.max(0, Math.min(box.width - tip.offsetWidth, event.clientX - box.left + 12)) + "px";
  tip.style.top = "4px";
});
$("spectrum").addEventListener("pointerleave", () => { $("spectrum").parentNode.querySelector(".tip").hidden = true; });

function families(removed, family, evicted) {
  const list = $("families"), items = [];
  const line = (t, ...words) => {
    const { kind, done } = ACTIONS[run.kinds[t]];
    items.push(make("li", {}, make("span", { class: "kind", style: { "--kind": `var(--${kind})` } }, done), " ", ...words));
  };
  if (evicted) line(run.layers[layer].evicted - 1, `the whole layer, at step ${count(run.layers[layer].evicted)}`);
  for (const [parent, dropped] of family) {
    const end = removed.get(parent), name = end === undefined ? make("b", {}, String(parent)) : make("s", {}, String(parent));
    const into = run.into[end] >= 0 ? ` into ${run.into[end]}` : "", after = end === undefined ? "" : `, then ${ACTIONS[run.kinds[end]].done}${into}`;
    line(removed.get(dropped[0]), name, ` ← ${dropped.join(", ")}${after}`);
  }
  const single = [...removed].filter(([, t]) => !run.evictions.has(t) && run.into[t] < 0);
  for (const kind of Object.keys(ACTIONS)) {
    const some = single.filter(([neuron, t]) => run.kinds[t] === kind && !(family.has(neuron) && !run.compensates(t)));
    if (!some.length) continue;
    if (!ACTIONS[kind].compensates) { line(some[0][1], some.map(([neuron]) => neuron).join(", ")); continue; }
    for (const [neuron, t] of some.slice(-60).reverse()) {
      const by = run.absorbers[t];
      line(t, make("b", {}, String(neuron)), by && by.length ? " → mostly " + by.map(([j, share]) => `${j} (${share > 0 ? "" : "−"}${Math.abs(share).toFixed(2)})`).join(", ") : " → all that were kept");
    }
    if (some.length > 60) line(some[0][1], `and ${some.length - 60} before them`);
  }
  if (!items.length) items.push(make("li", { class: "quiet" }, "No neuron of this layer is removed yet."));
  list.replaceChildren(...items);
}

// ---- everything else that follows the slider ----------------------------------------------------

function tiles() {
  const entries = Object.entries(UNITS).map(([unit, name]) => [percent(run.share(unit, step)), `of the ${name}`, `${human(run[unit][step])} of ${human(run[unit][0])}`, run.share(unit, step)]);
  entries.push([megabytes(run.bytes[step]), "of weights and buffers", `of ${megabytes(run.bytes[0])}`, run.bytes[step] / run.bytes[0]]);
  const whole = run.total[run.steps];
  entries.push([run.byHand ? "–" : figure(run.total[step]), "distortion so far", run.byHand ? "no prices: made by hand" : run.sum, whole ? run.total[step] / whole : 0]);
  if (run.times.length) {
    const here = run.timed.find(([k]) => k === step), first = run.timed.find(([k]) => k === 0);
    const caption = `original ${figure(first ? first[1] : run.times[0])} ms` + (here ? `, ${figure(here[1])} ms measured here` : "");
    entries.push([`${figure(run.times[step])} ms`, "latency, predicted", caption, Math.min(1, run.times[step] / run.times[0])]);
  }
  for (const [what, found] of [["accuracy", "measured"], ["score", "measured"], ["fidelity", "predicted"]]) {
    if (!run[what].length) continue;
    const most = what === "score" ? Math.max(...run.score.map(([, value]) => value)) : 1, full = (value) => (most > 0 ? value / most : 0);
    const point = run.at(what, step), after = run[what].find(([k]) => k > step);
    const say = SHOWN[what];
    if (point && point[0] === step) entries.push([say(point[1]), what, `${found} here`, full(point[1])]);
    else if (point && after) entries.push([`${say(point[1]).replace("%", "")} … ${say(after[1])}`, what, `${found} at steps ${count(point[0])} and ${count(after[0])}`, full(Math.min(point[1], after[1]))]);
    else { const near = point ?? after; entries.push([say(near[1]), what, `${found} at step ${count(near[0])} only`, full(near[1])]); }
  }
  $("tiles").replaceChildren(...entries.map(([value, name, more, share]) =>
    make("div", { class: "tile" }, make("b", {}, value), make("span", {}, name), make("br"), make("span", { class: "more" }, more), make("i", { style: { "--share": 100 * share + "%" } }))));
}
function upcoming() {
  const items = [];
  for (let t = step; t < Math.min(run.steps, step + 4); t++) {
    const title = run.what(t);
    items.push(make("li", { style: { "--kind": `var(--${ACTIONS[run.kinds[t]].kind})` } },
      make("div", { class: "what" }, title[0].toUpperCase() + title.slice(1)),
      make("div", { class: "why" }, run.why(t)),
      make("div", { class: "figures" }, ...run.figures(t).map((words) => make("span", {}, words)))));
  }
  if (step + 4 >= run.steps) items.push(make("li", { class: "end quiet" }, `The run ends here${run.byHand ? "" : ": encode with a smaller budget for more"}.`));
  const after = run.places[run.place(step) + 1];
  $("next-note").textContent = run.stops.length && after ? `The next stop is step ${count(after)}: ${plural(after - step, "action")} until ${run.uniform ? "corresponding layers have one width" : "all widths are multiples"} again.` : "";
  $("next").replaceChildren(...items);
}
function mix() { // the ribbon's legend, with how many so far
  const present = Object.keys(ACTIONS).filter((kind) => run.mix[kind].length);
  legend($("mix"), present.map((kind) => [`${count(below(run.mix[kind], step))} ${ACTIONS[kind].done}`, "--" + ACTIONS[kind].kind]));
  $("mix").prepend(make("span", { class: "quiet" }, !present.length ? "Nothing was done." : binned > 1 ? `Each bar is ${count(binned)} steps, its height their distortion. So far` : "Each tick is one step. So far"));
}
function command() {
  const at = step === run.saved;
  const words = at ? run.command.saved : `${run.command.before} --steps ${step} ${run.command.after}`;
  $("command").textContent = words; $("command-onnx").textContent = words.replace(/--out \S+$/, "--onnx small.onnx");
  const fill = run.command.complete || (at && !run.command.saved.includes(" MODEL ")) ? "" : "Replace the words in capitals by your own. ";
  $("command-note").textContent = fill + (at ? "The saved model: the original weights are not needed." : "Replayed on the original weights.");
}

function update() {
  $("slider").value = String(run.place(step));
  $("step").textContent = count(step);
  const last = step ? run.what(step - 1) : "the original network";
  $("now").textContent = step ? "last: " + last : last;
  $("slider").setAttribute("aria-valuetext", `step ${step} of ${run.steps}, ${percent(run.share("parameters", step))} of the parameters, ${last}`);
  $("saved").disabled = step === run.saved;
  tiles(); for (const chart of [sizes, costs, paces, ...Object.values(QUALITY)]) chart.move(); upcoming(); mix(); command(); networkNow(); detail(); mapCursor();
  remember();
}
let frame = 0;
function go(k, now) {
  const next = run.places[run.place(Math.round(k))];
  if (next === step && !now) return;
  step = next;
  if (now) { update(); return; }
  $("slider").value = String(run.place(step));
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; update(); });
}
const move = (by) => go(run.places[Math.max(0, Math.min(run.places.length - 1, run.place(step) + by))]);
let later = 0;
function remember() {
  clearTimeout(later);
  later = setTimeout(() => { try { history.replaceState(null, "", `#run=${run.number}&step=${step}`); } catch { /* not allowed here */ } }, 300);
}
function show(number, k) {
  stop();
  run = RUNS[number]; step = run.places[run.place(k)];
  if (layer < 0 || layer >= run.layers.length) layer = run.moves.reduce((best, moves, n) => (moves.length > run.moves[best].length ? n : best), 0);
  $("title").textContent = headline();
  $("subtitle").textContent = subtitle();
  $("total").textContent = count(run.steps);
  $("slider").max = String(run.places.length - 1);
  $("order").textContent = run.order(); $("sum").textContent = `(${run.sum})`;
  network(); strip(); map(); works(); curves(); alone(); go(step, true);
}
const FOLD = 8; // names in one cell
function alone() {
  const table = (head, body) => {
    const node = make("table", {}, make("thead", {}, make("tr", {}, ...head.map(([words, number]) => make("th", number ? { class: "number" } : {}, words)))));
    node.append(make("tbody", {}, ...body.map((cells) => make("tr", {}, ...cells.map((cell, n) => make("td", { ...(head[n][1] ? { class: "number" } : {}), "data-head": head[n][0] }, cell))))));
    return node;
  };
  const parts = [];
  const together = (list, same) => { // one row per reason
    const found = new Map();
    for (const one of list) { const key = JSON.stringify(same(one)); if (!found.has(key)) found.set(key, []); found.get(key).push(one); }
    return [...found.values()];
  };
  const names = (list) => { // a long list folds
    const all = list.map((one) => one[0]);
    return all.length <= FOLD ? all.join(", ") : make("details", {}, make("summary", {}, `${all.slice(0, FOLD - 2).join(", ")} and ${all.length - FOLD + 2} more`), all.slice(FOLD - 2).join(", "));
  };
  const facts = (list) => make("div", { class: "quiet small" }, `${list[0][1]}, ${plural(list.reduce((sum, one) => sum + one[2], 0), "output")}`);
  if (run.skipped.length) parts.push(table([["what"], ["why"]],
    together(run.skipped, ([, kind, , why]) => [kind, why]).map((list) => [make("div", {}, names(list), facts(list)), list[0][3]])));
  if (run.leftAlone.length) parts.push(make("h3", {}, `Kept by ${run.method}`),
    table([["what"], ["why"]], together(run.leftAlone, ([, why]) => why).map((list) => [names(list), list[0][1]])));
  if (!parts.length) parts.push(make("p", { class: "quiet" }, "Nothing: all of the network can be compressed."));
  $("alone").replaceChildren(...parts);
  (run.layers.length > 14 ? $("detail") : $("overview")).after($("rest")); // where there is room
}

// ---- controls -----------------------------------------------------------------------------------

function stop() { clearInterval(timer); timer = null; $("play").textContent = "▶"; $("play").setAttribute("aria-label", "Play the run"); }
$("play").addEventListener("click", () => {
  if (timer) { stop(); return; }
  if (run.place(step) >= run.places.length - 1) go(0, true);
  $("play").textContent = "❚❚"; $("play").setAttribute("aria-label", "Pause");
  const last = run.places.length - 1, stride = Math.max(1, Math.round(last / 240));
  timer = setInterval(() => { if (run.place(step) >= last) stop(); else move(stride); }, Math.max(40, Math.min(600, 9000 / Math.max(1, last))));
});
$("slider").addEventListener("input", () => { stop(); go(run.places[Number($("slider").value)]); });
$("saved").addEventListener("click", () => { stop(); go(run.saved); });
$("axis").addEventListener("change", curves);
$("works-axis").addEventListener("change", works);
for (const button of document.querySelectorAll(".command button")) button.addEventListener("click", async () => {
  const code = button.previousElementSibling;
  try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
  catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});
addEventListener("keydown", (event) => { // arrows work wherever they mean nothing else
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "ArrowRight") move(1); else if (event.key === "ArrowLeft") move(-1); else return;
  stop(); event.preventDefault();
});
const redraw = () => { strip(); map(); works(); curves(); };
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 80); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
for (const [name, light] of [["beforeprint", true], ["afterprint", false]]) // canvases are drawn before the print's colours apply
  addEventListener(name, () => { document.documentElement.classList.toggle("light", light); redraw(); });

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
