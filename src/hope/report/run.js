// What the page knows: its data, words for numbers, and a run added up. One scope with the other scripts.

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const ACTIONS = DATA.actions; // letter -> the words of an action: kind, done, sentence; whether the remaining neurons compensate
const UNITS = { parameters: "parameters", neurons: "neurons", macs: "MACs" };
const sized = (one) => (one.rounds ? { ...UNITS, bytes: "bytes" } : UNITS); // bytes say more than parameters only where weights are rounded
const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "5 2 1 2 1 2"]; // with six colours, thirty different lines
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
const percent1 = (share) => (100 * share).toFixed(1) + "%";
function fine(fidelity) { // not in percent, so that it is not taken for an accuracy
  const words = Math.abs(fidelity).toFixed(3);
  return (fidelity < 0 && Number(words) ? "−" : "") + words;
}
const FAR = 0.15; // of the network between two measured sizes: nothing is interpolated over more
const plain = (score) => String(+score.toPrecision(4)).replace("-", "−");
const SHOWN = { accuracy: percent1, score: plain, fidelity: fine };
function brief(n) { // 853 k, 11.7 M
  const power = n >= 999_500_000 ? 3 : n >= 999_500 ? 2 : n >= 1000 ? 1 : 0, value = n / 1000 ** power;
  return power ? `${value < 10 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0)} ${" kMG"[power]}` : count(n);
}
const human = (n) => (n >= 1e6 ? brief(n) : count(n)); // 2.87 G, 853,018
const megabytes = (n) => (n >= 1e9 ? `${figure(n / 1e9)} GB` : n >= 1e6 ? `${figure(n / 1e6)} MB` : `${figure(n / 1e3)} kB`);
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
    this.bytes = sums(data.bytes);
    this.rounds = Object.keys(data.described).length > 0;
    this.times = sums(data.times).map((ns) => ns / 1e6); // predicted milliseconds
    this.sum = data.baseline ? "sum of scores" : "sum of J";
    this.total = sums([0, ...data.costs.map((cost) => cost ?? 0)]);
    this.places = data.stops.length ? data.stops : Array.from({ length: this.steps + 1 }, (_, k) => k); // where the run may be ended
    this.energy = data.layers.map((one) => (data.relative ? 1 : one.capacities.reduce((sum, c) => sum + (c ?? 0), 0)));
    this.moves = data.layers.map(() => []); // per layer, its steps
    this.lost = data.layers.map(() => [0]); // neurons lost after so many of them
    this.kept = data.layers.map((one) => [one.capacities.reduce((sum, c) => sum + (c ?? 0), 0)]); // capacity of those that are kept
    this.evictions = new Set(data.evictions);
    this.release = new Float64Array(this.steps);
    const last = {};
    for (let t = 0; t < this.steps; t++) {
      const evict = this.evictions.has(t), target = data.targets[t], key = (evict ? "b" : "l") + target;
      this.release[t] = last[key] = (last[key] ?? 0) + data.releases[t];
      for (const layer of evict ? Object.keys(data.along[t] ?? {}) : target < 0 ? [] : [target]) {
        const lost = this.lost[layer], kept = this.kept[layer], going = this.going(t, layer), own = data.layers[layer].capacities;
        this.moves[layer].push(t);
        lost.push(lost[lost.length - 1] + going.length);
        kept.push(going.reduce((left, i) => left - (own[i] ?? 0), kept[kept.length - 1]));
      }
    }
    this.mix = {};
    for (const kind of Object.keys(ACTIONS)) {
      const places = [];
      for (let t = 0; t < this.steps; t++) if (data.kinds[t] === kind) places.push(t);
      this.mix[kind] = places;
    }
  }
  place(k) { // the number of the nearest place to end
    const after = Math.min(below(this.places, k), this.places.length - 1);
    return after > 0 && k - this.places[after - 1] < this.places[after] - k ? after - 1 : after;
  }
  going(t, layer) { return this.evictions.has(t) ? (this.along[t]?.[layer] ?? []) : (this.several[t] ?? (this.who[t] >= 0 ? [this.who[t]] : [])); }
  isEvicted(layer, k) { const at = this.layers[layer].evicted; return at !== null && k >= at; }
  bits(layer, k) { return this.isEvicted(layer, k) ? "–" : this.layers[layer].bits.findLast(([at]) => at <= k)[1]; }
  width(layer, k) {
    return this.isEvicted(layer, k) ? 0 : this.layers[layer].neurons - this.lost[layer][below(this.moves[layer], k)];
  }
  keeps(layer, k) { // of the layer's capacity in the original, the share of the neurons that are still there; null if not known
    const kept = this.kept[layer];
    if (!(kept[0] > 0)) return null;
    return this.isEvicted(layer, k) ? 0 : Math.max(0, kept[below(this.moves[layer], k)] / kept[0]);
  }
  capacity(layer, k) { // what is kept by the method's own account, with the compensation; null if not known
    if (!this.left.length) return null;
    if (this.isEvicted(layer, k)) return 0;
    const made = this.moves[layer].slice(0, below(this.moves[layer], k)).filter((t) => !this.evictions.has(t)); // an eviction does not note what it keeps
    if (!made.length) return 1;
    const before = this.energy[layer];
    return before > 0 ? Math.max(0, Math.min(1, this.left[made[made.length - 1]] / before)) : null;
  }
  share(unit, k) { return this[unit][0] ? this[unit][k] / this[unit][0] : 1; }
  name_of(t) { return this.targets[t] < 0 ? this.described[t] : (this.evictions.has(t) ? this.blocks : this.layers)[this.targets[t]].name; }
  what(t) {
    if (this.described[t]) return this.described[t];
    const some = this.going(t), neurons = some.length === 1 ? `neuron ${some[0]}` : plural(some.length, "neuron");
    const words = { name: this.name_of(t), neurons, parent: this.into[t] };
    return ACTIONS[this.kinds[t]].sentence.replace(/\{(\w+)\}/g, (_, word) => words[word]);
  }
  compensates(t) { return this.into[t] >= 0 || ACTIONS[this.kinds[t]].compensates; } // a parent, or all that are kept
  why(t) {
    const cost = this.costs[t] ?? Infinity, target = this.targets[t], one = this.layers[target];
    if (this.byHand) return "Given by hand; it has no price.";
    if (this.evictions.has(t)) {
      const left = this.blocks[target].layers.reduce((sum, layer) => sum + this.width(layer, t), 0), before = this.total[t];
      const price = `J ${figure(cost)} is added to a distortion of ${figure(before)} so far`;
      return this.searched
        ? `Chosen by the eviction search: without it the network has a higher predicted fidelity than absorption gives at the same size. Its branch writes ${small(1 - Math.exp(-cost))} of the stream after the block; ${price}.`
        : `Its branch of ${plural(left, "neuron")} is removed at once. ${price}${before > 0 ? ` (${small(cost / before)})` : ""}.`;
    }
    if (this.described[t]) return `It loses ${small(1 - (this.left[t] ?? 1))} of what its weight computes.`;
    const n = this.width(target, t);
    if (this.baseline) return `Its score, ${this.criterion}, is ${figure(cost)}${this.stops.length ? "" : ", the lowest of those that may be removed"}.`;
    if (!this.going(t).length) return `It costs ${figure(cost)}.`;
    if (!this.compensates(t)) return `It has ${small(isFinite(cost) ? cost / (n + cost) : 1)} of the capacity left in its layer (${plural(n, "neuron")}).`;
    if (this.into[t] >= 0) return `The two are nearly equal: one neuron for both lacks ${small(cost / n)} of the layer's capacity.`;
    const whole = one.capacities.reduce((sum, c) => sum + (c ?? 0), 0), own = this.going(t).reduce((sum, i) => sum + (one.capacities[i] ?? 0), 0);
    return `${n === 2 ? "The other neuron compensates" : `The other ${count(n - 1)} neurons compensate`} for it: ${small(1 - Math.exp(-cost))} of the signal is lost.` +
      `${whole > 0 ? ` It had ${small(own / whole)} of the layer's capacity.` : ""}`;
  }
  saves(t) { return this.described[t] ? this.bytes[t] - this.bytes[t + 1] : this.release[t]; } // bytes at that moment, or parameters
  each(t) { const saved = this.saves(t); return saved > 0 ? (this.costs[t] ?? Infinity) / saved : null; } // J/ΔP, J per byte
  figures(t) { // the last with that of the next step, where the two were compared
    if (this.byHand) return [];
    const here = this.each(t), next = t + 1 < this.steps ? this.each(t + 1) : null, released = this.described[t] ? `saves ${count(this.saves(t))} bytes` : `ΔP ${count(this.release[t])}`;
    const alone = this.described[t] || this.described[t + 1] || t + 1 >= this.steps || this.stops.length > 0 || this.times.length > 0 || (this.searched && (this.evictions.has(t) || this.evictions.has(t + 1)));
    if (this.baseline) return [released, `score ${figure(this.costs[t])}${alone ? "" : `, the next one's ${figure(this.costs[t + 1])}`}`];
    const found = [`J ${figure(this.costs[t])}`, released];
    if (here === null) return found;
    let compared = "";
    if (!alone && next !== null && here > 0 && isFinite(next)) {
      const times = next / here;
      compared = ", the next one's " + (times < 0.9999 ? "less, but only after this one" : times < 1.0001 ? "the same" : times < 1.1 ? `${small(times - 1)} more` : `${figure(+times.toPrecision(2))} times as much`);
    }
    return [...found, `${this.described[t] ? "J per byte" : "J/ΔP"} ${figure(here)}${compared}`];
  }
  order() { // what the figures mean, and what is removed first
    const waits = !this.stops.length ? "" : this.uniform ? " Corresponding layers lose neurons together, so their sums are compared." : " A layer's neurons wait until its width is a multiple, so the order is not exactly this one.";
    if (this.byHand) return "The actions of this run were given by hand: they have no prices.";
    if (this.baseline) return `J is a neuron's score: ${this.criterion}. ΔP is how many parameters its removal releases. The neuron with the lowest score is removed first.${waits}`;
    const least = this.times.length ? "J per millisecond that it saves" : "J/ΔP";
    const blocks = this.searched && this.evictions.size ? "; the eviction search decides about blocks, whatever their J/ΔP" : "";
    return `J is ${this.price}. ΔP is how many parameters it releases. The action with the least ${least} is first${blocks}.${waits}`;
  }
  account(layer, k) { // the method's own account in words, where it differs
    const left = this.capacity(layer, k);
    const made = this.moves[layer].slice(0, below(this.moves[layer], k));
    if (left === null || this.isEvicted(layer, k) || !made.some((t) => this.compensates(t))) return "";
    return this.relative
      ? `With the compensation, ${percent(left)} of the signal that the next layers read is kept.`
      : `With the capacity of merged neurons, ${percent(left)} is kept.`;
  }
  ends(unit, share) { // the first place to end at which no more than a share of a size is left; null if the run does not come so far
    return this.places.find((k) => this.share(unit, k) <= share + 1e-9) ?? null;
  }
  near(what, unit, share) { // accuracy, score or fidelity of the model that a budget gives: its value, whether it was measured there, its size
    const k = this.ends(unit, share), size = k === null ? null : this.share(unit, k);
    let before = null;
    for (const [at, value] of k === null ? [] : this[what]) {
      const here = this.share(unit, at);
      if (at === k || Math.abs(here - size) < 0.005) return { value, exact: true, size };
      if (here < size) return !before || before[0] - here > FAR ? null : { value: value + ((before[1] - value) * (size - here)) / (before[0] - here), exact: false, size };
      before = [here, value];
    }
    return null;
  }
  at(what, k) { // the last point of "accuracy", "score" or "fidelity" up to k
    let found = null;
    for (const point of this[what]) if (point[0] <= k) found = point;
    return found;
  }
}
const RUNS = DATA.runs.map((data, number) => new Run(data, number));
let run = RUNS[0], step = 0, layer = -1, timer = null;
