// The headline, accuracy, score and fidelity of all runs against their size, and a table at equal size.

// ---- the headline -------------------------------------------------------------------------------

const FIGURE = { accuracy: (value) => (100 * value).toFixed(1), score: plain, fidelity: fine };
const about = (found, say) => (found.exact ? "" : "≈") + say(found.value);
function quality(some, share) { // "accuracy 94.0 → 82.0", or of several runs "accuracy 94.0 → absorb 82.0, hope 48.0"; without accuracies the score, else the fidelity
  const at = (what) => some.map((one) => one.near(what, "parameters", share));
  const what = ["accuracy", "score", "fidelity"].find((one) => at(one).every(Boolean));
  if (!what) return "";
  const found = at(what);
  const first = some[0][what].find(([k]) => k === 0), from = what !== "fidelity" && first ? `${FIGURE[what](first[1])} → ` : "";
  return `${what === "fidelity" ? "predicted fidelity" : what} ${from}${found.map((one, n) => (some.length > 1 ? some[n].name + " " : "") + about(one, FIGURE[what])).join(", ")}`;
}
function headline() { // of the saved model; of several runs, at the size of the one that is shown
  const before = run.parameters[0], after = run.parameters[run.saved], share = run.share("parameters", run.saved);
  const alike = RUNS.length <= 4 && RUNS.every((one) => one.title === run.title && one.parameters[0] === before);
  const said = (alike && quality(RUNS, share)) || quality([run], share);
  return `${run.title}: ${run.saved ? `${brief(before)} → ` : ""}${brief(after)} parameters${said ? `, ${said}` : ""}`;
}
function subtitle() {
  const name = RUNS.length > 1 && run.name !== run.method ? ` (${run.name})` : "";
  const bytes = `${megabytes(run.bytes[0])} → ${megabytes(run.bytes[run.saved])}, `;
  const left = run.saved ? `; ${bytes}${percent(run.share("macs", run.saved))} of the MACs and ${percent(run.share("neurons", run.saved))} of the neurons are kept` : "";
  return `${run.steps ? "compressed " : ""}${run.by}${name}: ${count(run.saved)} of ${plural(run.steps, "step")}${left}`;
}

// ---- accuracy, score and fidelity against size ----------------------------------------------------

const QUALITY = { accuracy: new Chart($("chart-accuracy")), score: new Chart($("chart-score")), fidelity: new Chart($("chart-fidelity")) };
function scale(what) { // from which value to which it is drawn
  const all = what === "score" ? RUNS.flatMap((one) => one.score.map(([, value]) => value)) : [1];
  return { low: Math.min(0, ...all), top: Math.max(0, ...all) };
}
const SIZES = [0.8, 0.6, 0.5, 0.4], MOST = 6; // shares in the table, with those that were saved
function works() {
  const unit = $("works-axis").value, known = Object.keys(QUALITY).filter((what) => RUNS.some((one) => one[what].length));
  $("works").hidden = !known.length;
  if (!known.length) return;
  $("h-works").textContent = RUNS.length > 1 ? `${plural(RUNS.length, "run")} compared` : known.map((what, n) => (n ? what : what[0].toUpperCase() + what.slice(1))).join(" and ");
  const ordered = [...RUNS.filter((one) => one !== run), run];
  EDGE.left = 44;
  for (const [what, chart] of Object.entries(QUALITY)) {
    $("panel-" + what).hidden = !known.includes(what);
    if (!known.includes(what)) continue;
    chart.render({
      axis: unit, ...scale(what), format: what === "accuracy" ? percent : (at) => String(+at.toFixed(3)), series: [],
      points: ordered.filter((one) => one[what].length).map((one) => ({ ...looks(one), what })),
      words: (k) => `${percent(run.share(unit, k))} of the ${UNITS[unit]}\n` + RUNS.map((one) => [one, one.near(what, unit, run.share(unit, k))]).filter(([, found]) => found)
        .map(([one, found]) => `${RUNS.length > 1 ? one.name : what} ${about(found, SHOWN[what])}`).join("\n"),
    });
  }
  legend($("legend-works"), RUNS.length > 1 ? RUNS.map(looks).map((one) => [one.of.name, one.tint, one.dash]) : [], line);
  equal(unit, known);
}
function sizesOf(unit, known) { // shares at which something is known: the saved one, round ones, and those at which other runs were saved
  const found = [], saved = RUNS.filter((one) => one !== run).map((one) => [one.share(unit, one.saved), 0.05]);
  for (const [share, apart] of [[run.share(unit, run.saved), 0], ...SIZES.map((size) => [size, 0.02]), ...saved]) {
    const there = share < 0.995 && RUNS.some((one) => known.some((what) => one.near(what, unit, share)));
    if (there && found.length < MOST && found.every((other) => Math.abs(other - share) >= apart)) found.push(share);
  }
  return found.sort((a, b) => b - a);
}
function equal(unit, known) {
  const columns = sizesOf(unit, known);
  let between = false, jumps = false;
  $("panel-table").hidden = !columns.length;
  $("h-equal").textContent = RUNS.length > 1 ? "At equal size" : "At some sizes";
  const cell = (one, whats, share) => {
    const parts = whats.map((what) => {
      const found = one.near(what, unit, share);
      between ||= found !== null && !found.exact;
      return make("span", { class: what }, found ? about(found, FIGURE[what]) : "–");
    });
    const k = one.ends(unit, share), size = k === null ? share : one.share(unit, k), less = share - size >= 0.015; // an eviction jumps over the size
    jumps ||= less;
    return make("td", { class: "number" }, ...parts, ...(less ? [make("span", { class: "less" }, `at ${percent(size)}`)] : []));
  };
  const head = make("tr", {}, make("th", {}, "at most"), ...columns.map((share) => make("th", { class: "number" }, percent(share))));
  const several = RUNS.length > 1, key = (one) => (several ? [line(looks(one).tint, looks(one).dash)] : []);
  const entries = several ? RUNS.map((one) => [one.name, one, known]) : known.map((what) => [what, run, [what]]);
  const body = entries.map(([name, one, whats]) => make("tr", several && one === run ? { class: "chosen" } : {},
    make("th", { scope: "row" }, ...key(one), name), ...columns.map((share) => cell(one, whats, share))));
  $("equal").replaceChildren(make("table", { class: "plain" }, make("thead", {}, head), make("tbody", {}, ...body)));
  $("equal-note").textContent = [
    `Columns are shares of the ${UNITS[unit]}.`, known.includes("accuracy") ? "Accuracy is in %." : "", known.includes("fidelity") ? `${known.length > 1 && several ? "Below it, fidelity" : "Fidelity"} is predicted; 1 is the original.` : "",
    between ? "≈ is interpolated between two measured sizes." : "", jumps ? "Where one action removes much, the next smaller size is given." : ""].filter(Boolean).join(" ");
}
