// The page: controls, tables, notes, and updates of the figures.
"use strict";

const QUANTILE_NAMES = ["q0", "q10", "q25", "q50", "q75", "q90", "q100"];
let content, comparison, costs, rounds, pending = null;

function swatch(row) {
  const line = create("span", {className: "swatch"});
  const dash = {solid: "", dashed: "stroke-dasharray='6 4'", dotted: "stroke-dasharray='2 4'"}[row.dash];
  line.innerHTML = `<svg width="30" height="8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4" stroke="${row.color}"`
    + ` stroke-width="3" ${dash}/></svg>`;
  return line;
}

function fillTable(id, header, rows) {
  const cell = (tag, text, isCurrent, scope) => {
    const created = create(tag, {className: isCurrent ? "current" : ""}, text);
    if (scope) created.setAttribute("scope", scope);
    return created;
  };
  const head = create("thead", {}, create("tr", {}, ...header.map(({text, isCurrent}) => cell("th", text, isCurrent, "col"))));
  const body = rows.map(({row, cells}) => {
    const first = cell("th", "", false, "row");
    first.append(create("div", {className: "name"}, swatch(row), create("span", {}, ...withLineBreaks(row.name), divergenceText(row))));
    return create("tr", {}, first, ...cells.map((text, i) => cell("td", text, header[i + 1].isCurrent)));
  });
  element(id).replaceChildren(head, create("tbody", {}, ...body));
}

// Splits a name so that lines break after "_" and "=" first.
function withLineBreaks(name) {
  return name.split(/(?<=[_=])/).flatMap((part, place) => place ? [create("wbr", {}), part] : [part]);
}

// Remark behind the name of a row with runs that diverged.
function divergenceText(row) {
  const found = row.runs.filter((run) => run.diverged !== null);
  if (!found.length) return "";
  return row.runs.length === 1 ? ` (diverged in round ${found[0].diverged})` : ` (${found.length} diverged)`;
}

const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

const shownPercent = (value) => {
  const percent = 100 * value;
  if (!Number.isFinite(percent)) return "an unknown target";
  const rounded = Number(percent.toFixed(1));
  return Math.abs(percent - rounded) <= 1e-9 * Math.abs(percent) ? `${numbers.fixed(percent, 1)} %` : `${Number(percent.toPrecision(6))} %`;
};

function drawTable(shown) {
  const all = [...comparison.communications];
  const after = all.findIndex((cost) => cost > state.cost);
  if (!all.includes(state.cost)) all.splice(after < 0 ? all.length : after, 0, state.cost);
  const summaries = new Map(comparison.rows.map((row) => {
    const evaluation = evaluationOf(row);
    return [row, evaluation && numbers.summary(row, evaluation, state.target, all, state.score)];
  }));
  const texts = shown.map(({row}) => {
    const own = summaries.get(row), twin = row.twin === null ? null : summaries.get(comparison.rows[row.twin]);
    const quarters = own.quarters.map(([mean]) => numbers.percent([mean, NaN])).join("/");
    return {row, cells: [...all.map((_, place) => numbers.timeText(own, twin, place)), numbers.percent(own.accuracy),
      numbers.percent(own.worst), quarters, String(own.runs), numbers.fixed(row.compile_seconds, 1),
      numbers.fixed(row.host_seconds - row.compile_seconds, 1)]};
  });
  const group = state.score === "mean" ? "" : GROUPS[state.score];
  const clients = (of) => plural(comparison.group_sizes[of], "client");
  const columns = [group ? `accuracy of the ${group} %` : "accuracy %", "worst tenth %", "quarters %, fastest first", "runs", "compiling s", "running s"];
  fillTable("table", [{text: "method"}, ...all.map((cost) => ({text: `time at C = ${cost}`, isCurrent: cost === state.cost})),
    ...columns.map((text) => ({text}))], texts);
  const exact = state.target === comparison.target;
  const cells = texts.flatMap((row) => row.cells);
  const notes = [
    `Time: simulated time until the mean accuracy${group && ` of the ${group} (${clients(state.score)})`} reaches ${shownPercent(state.target)}${exact ? `, ${comparison.reason}` : ""}; `
      + "C is the cost of a round's communication; both in time units. Nothing is interpolated: times are those of evaluations.",
    `Worst tenth: of the tenth of the clients that fare worst (${clients("worst")}); quarters: of the clients by expected speed.`,
  ];
  if (cells.some((text) => text.includes(" ± "))) notes.push("Mean ± sample standard deviation over the runs.");
  if (cells.some((text) => text === "not reached" || text.endsWith(" seeds"))) {
    notes.push("Not reached: the runs ended before they reached the target, so their times are unknown.");
  }
  if (cells.some((text) => text.startsWith("≤"))) notes.push("≤: reached by the first evaluation, maybe sooner.");
  if (cells.some((text) => text.endsWith("x)"))) {
    notes.push("(4.0x): reached in a quarter of the time of the same algorithm without doubling; below 1x is slower.");
  }
  const even = breakEvens(shown);
  if (even.length) notes.push(`Break-even, the cost C at which two lines need the same time: ${even.join("; ")}.`);
  if (shown.some(({row}) => !row.takes_cost)) {
    notes.push("-: a cost cannot be added: rounds overlap, or their times include communication.");
  }
  element("table-notes").replaceChildren(...[...notes, ...comparison.notes].map((text) => create("li", {}, text)));
}

// Costs at which selected lines break even with their twins, or, without twins, all pairs of lines; the first eight.
function breakEvens(shown) {
  const rows = shown.map(({row}) => row);
  const twins = rows.map((row) => [row, comparison.rows[row.twin]]).filter(([, twin]) => rows.includes(twin));
  const pairs = twins.length ? twins : rows.flatMap((row, i) => rows.slice(i + 1).map((other) => [row, other]));
  return pairs.map((pair) => [pair, numbers.breakEven(...pair.map((row) => [row, evaluationOf(row)]), state.target, state.score)])
    .filter(([, cost]) => cost !== null).slice(0, 8)
    .map(([[row, other], cost]) => `${row.name} and ${other.name} ${threeDigits(cost)}`);
}

function drawShares(shown) {
  fillTable("shares", [{text: "method"}, ...comparison.shares.map((text) => ({text}))],
    shown.map(({row}) => ({row, cells: row.shares})));
}

function drawCurves(shown, what) {
  const {hasThinLines, hasHeldEnds, hasBands, hasDots, hasStages, end, whole} = drawing.overTime(shown);
  element("cut-note").textContent = end < whole ? `Time ends at ${threeDigits(end)} of ${threeDigits(whole)} time units, soon after the last line `
    + "reached the target: tick 'whole runs' for the rest." : "";
  if (what === "rows") rounds = drawing.overRounds(shown);
  drawing.drawTarget("rounds", shown);
  const counts = [...new Set(shown.map(({row}) => row.runs.length))].sort((a, b) => a - b);
  const notes = [];
  if (hasBands || rounds.hasBands) notes.push(`Lines: mean of ${counts.join("/")} runs; bands: lowest to highest run.`);
  if (hasHeldEnds || rounds.hasHeldEnds) notes.push("Thinner: some runs have ended and keep their last value.");
  if (hasThinLines || rounds.hasThinLines) notes.push("Thin lines: single runs, some of which begin after others end.");
  if (hasDots || rounds.hasDots) notes.push("Dots, or squares for dashed lines: evaluations that are joined to no other.");
  if (hasStages || rounds.hasStages) notes.push("Hollow dots: a stage begins.");
  if (Number.isFinite(state.target)) notes.push(`Grey line: the target of ${shownPercent(state.target)}.`);
  const overlap = state.cost > 0 ? shown.filter(({row}) => !row.takes_cost).map(({row}) => row.name) : [];
  if (overlap.length) notes.push(`Not drawn over time, since C cannot be added: ${overlap.join(", ")}.`);
  const diverged = shown.flatMap(({row}) => row.runs.filter((run) => run.diverged !== null)
    .map((run) => `${row.name}, ${run.seed}, in round ${run.diverged}`));
  if (diverged.length) notes.push(`Diverged: ${diverged.join("; ")}.`);
  const hidden = comparison.rows.filter((row, place) => isChosen(row, place) && evaluationOf(row) === null);
  if (hidden.length) notes.push(`Not judged by ${state.evaluation}: ${hidden.map(({name}) => name).join(", ")}.`);
  element("curves-note").textContent = notes.join(" ");
}

const threeDigits = (value) => String(Number(value.toPrecision(3)));

function drawMap() {
  const row = comparison.rows[state.row], run = row.runs[state.run];
  fillSelect("map-row", comparison.rows.map(({name}, i) => [i, name]), state.row);
  fillSelect("map-run", row.runs.map(({seed}, i) => [i, seed]), state.run);
  drawing.map(run, comparison.num_clients);
  const [bands, columns] = run.map ? run.map.shape : [0, 0];
  const notes = run.map ? [`${row.name}, ${run.seed}: blue where a client takes part; clients sorted by expected speed.`]
    : [`${row.name}, ${run.seed}: the files do not tell who took part, only how many (see the figure before this one), since `
      + "times were drawn in every round, or clients at random."];
  if (run.map && bands < comparison.num_clients) notes.push(`${comparison.num_clients} clients in ${bands} bands: the more take part, the darker.`);
  if (run.map && columns < run.compute_time.length) notes.push(`${run.compute_time.length} rounds in ${columns} columns.`);
  element("map-note").textContent = notes.join(" ");
}

function drawClients(shown) {
  const hasDots = drawing.clients(shown, QUANTILE_NAMES);
  drawing.quarters(shown);
  const repeated = shown.some(({row}) => row.runs.length > 1);
  element("cohort-note").textContent = [...(repeated ? ["The first seed of each line."] : []),
    ...(shown.length > 1 ? ["Lines that coincide hide each other."] : [])].join(" ");
  element("quarters-note").textContent = "Quarters of the clients by expected speed"
    + (repeated ? "; line: mean over the runs, stroke: standard deviation." : ".");
  const coarse = shown.length > 0 && shown.every(({row}) => drawing.isCoarse(row));
  const points = coarse ? threeDigits(Math.min(...shown.flatMap(({row}) => row.runs.map((run) => run.test_points)))) : "";
  const boxes = coarse ? `Stroke: the mean. A client is judged by few test points, ${points} in the median, so that quartiles would say nothing.` : "Box: the middle half of the clients of all runs, stroke in it: the median; line: from the lowest to the highest tenth.";
  const tooMany = shown.some(({row}) => row.runs.some((run) => run.evaluations[evaluationOf(row)].clients === null));
  element("clients-note").textContent = tooMany ? `${boxes} ${comparison.num_clients} clients are too many for dots: quantiles only.`
    : hasDots ? `${boxes} Dots: accuracies of clients, larger where more clients have the same.` : "No client has a known accuracy.";
  const header = ["method", ...content.quantiles.map((q) => `${Number((100 * q).toFixed(1))} % of clients below`)];
  fillTable("quantiles", header.map((text) => ({text})), shown.map(({row}) => ({row,
    cells: [...row.distributions[evaluationOf(row)]].map((value) => numbers.percent([value, NaN]))})));
}

function drawEvaluations() {
  const shown = comparison.rows.map((row, place) => ({row, place})).filter(({row, place}) => isChosen(row, place));
  const found = new Map(shown.map(({row}) => [row, new Map(drawing.finalAccuracies(row))]));
  const named = [...new Set([...found.values()].flatMap((of) => [...of.keys()]))];
  const several = [...found.values()].some((of) => of.size > 1);
  element("evaluations").hidden = element("markers").hidden = !several;
  if (several) {
    element("markers").replaceChildren(...drawing.evaluations(shown, named).map((text) => create("li", {}, text)));
  }
  fillTable("judged", ["final accuracy %", ...named].map((text) => ({text})), shown.map(({row}) => ({row,
    cells: named.map((name) => (found.get(row).has(name) ? numbers.percent(found.get(row).get(name)) : ""))})));
  element("evaluations-note").textContent = several
    ? "fine_tune trains the server's model on each client before scoring; own_... scores what the client kept since it last took part."
    : "Every line has one evaluation; runs with --evaluations all show fine_tune beside the client's own part.";
}

function listRuns() {
  element("runs").replaceChildren(...comparison.rows.map((row) => {
    const summary = create("summary", {});
    summary.append(swatch(row), ` ${row.name}, ${plural(row.runs.length, "run")}`);
    return create("details", {}, summary, ...row.runs.map((run) => {
      const details = create("details", {}, create("summary", {}, `${run.seed}: `, create("code", {}, run.folder)));
      details.addEventListener("toggle", () => {
        if (details.querySelector("pre")) return;
        details.append(create("pre", {tabIndex: 0}, JSON.stringify({config: run.config, environment: run.environment}, null, 2)));
      });
      return details;
    }));
  }));
}

function fillSelect(id, choices, chosen) {
  element(id).replaceChildren(...choices.map(([value, text]) => create("option", {value, selected: value === chosen}, String(text))));
}

function listRows() {
  const names = [...new Set(comparison.rows.flatMap((row) => Object.keys(row.options)))];
  const filters = names.map((name) => [name, [...new Set(comparison.rows.map((row) => row.options[name]))].filter((v) => v !== undefined)]);
  element("filters").replaceChildren(...filters.filter(([, values]) => values.length > 1).map(([name, values]) => {
    const select = create("select", {}, create("option", {value: ""}, "all"));
    select.append(...values.map((value) => create("option", {value, selected: state.filters[name] === value}, value)));
    select.addEventListener("change", () => {
      if (select.value) state.filters[name] = select.value;
      else delete state.filters[name];
      scheduleDraw("rows");
    });
    return create("label", {}, `${name} `, select);
  }));
  element("legend").replaceChildren(...comparison.rows.map((row, place) => {
    const box = create("input", {type: "checkbox", checked: !state.off.has(place)});
    box.addEventListener("change", () => {
      if (box.checked) state.off.delete(place);
      else state.off.add(place);
      scheduleDraw("rows");
    });
    return create("li", {}, create("label", {}, box, swatch(row), row.name));
  }));
}

// Draws, at most once a frame, what depends on "time" (cost, target, axis), or everything ("rows").
function scheduleDraw(what) {
  if (pending === null) requestAnimationFrame(() => { const all = pending; pending = null; draw(all); });
  pending = pending === "rows" ? "rows" : what;
}

function draw(what) {
  const shown = shownRows(comparison);
  drawCurves(shown, what);
  drawTable(shown);
  drawShares(shown);
  if (what === "rows") {
    drawClients(shown);
    drawEvaluations();
    drawMap();
    [...element("legend").children].forEach((item, place) =>
      item.classList.toggle("out", !shown.some((of) => of.place === place)));
    element("count").textContent = `${shown.length} of ${comparison.rows.length}`;
  }
  element("state").textContent = `C = ${state.cost}, ${Number.isFinite(state.target) ? "target " : ""}${shownPercent(state.target)}, judged by `
    + `${state.evaluation || "the default evaluation of each line"} on ${judgedOn(shown.map(({row}) => row))} data.`;
  writeAddress(content);
  showControls();
  document.body.dataset.drawn = Number(document.body.dataset.drawn ?? 0) + 1;
}

// Shows the state in the controls, except in a number that is being typed.
function showControls() {
  const put = (id, value) => { if (document.activeElement !== element(id)) element(id).value = value; };
  put("cost", state.cost);
  put("target", Number.isFinite(state.target) ? percentOf(state.target) : "");
  const nearest = costs.reduce((best, cost, i) => (Math.abs(cost - state.cost) < Math.abs(costs[best] - state.cost) ? i : best), 0);
  put("cost-slider", nearest);
  element("cost-slider").setAttribute("aria-valuetext", `${state.cost} time units`);
  put("target-slider", Number.isFinite(state.target) ? percentOf(state.target) : 0);
  element("whole").checked = state.whole;
  element("log").checked = state.log;
  element("score").value = state.score;
  element("evaluation").value = state.evaluation;
}

// Draws everything for the chosen comparison, after it or the address changed.
function showComparison() {
  comparison = content.comparisons[state.comparison];
  costs = sliderCosts(comparison);
  element("cost-slider").max = costs.length - 1;
  const runs = comparison.rows.reduce((sum, row) => sum + row.runs.length, 0);
  element("about").textContent = `${comparison.title}: ${plural(comparison.rows.length, "line")}, ${plural(runs, "run")}`;
  const names = [...new Set(comparison.rows.flatMap(({runs: all}) => all.flatMap((run) => Object.keys(run.evaluations))))];
  fillSelect("comparison", content.comparisons.map(({title}, i) => [i, title]), state.comparison);
  element("comparison-label").hidden = content.comparisons.length < 2;
  if (!names.includes(state.evaluation)) state.evaluation = "";
  fillSelect("evaluation", [["", "default of each line"], ...names.map((name) => [name, name])], state.evaluation);
  listRows();
  listRuns();
  draw("rows");
}

function addListeners() {
  const on = (id, kind, action) => element(id).addEventListener(kind, action);
  const number = (id, valid, put) => on(id, "input", () => {
    const value = parseFloat(element(id).value);
    if (valid(value)) { put(value); scheduleDraw("time"); }
  });
  on("cost-slider", "input", () => { state.cost = costs[Number(element("cost-slider").value)]; scheduleDraw("time"); });
  number("cost", (value) => value >= 0 && value < Infinity, (value) => { state.cost = value; });
  for (const id of ["target-slider", "target"]) {
    number(id, (value) => value > 0 && value <= 100, (value) => { state.target = fraction(value); });
  }
  on("evaluation", "change", () => { state.evaluation = element("evaluation").value; scheduleDraw("rows"); });
  on("score", "change", () => { state.score = element("score").value; scheduleDraw("rows"); });
  on("whole", "change", () => { state.whole = element("whole").checked; scheduleDraw("time"); });
  on("log", "change", () => { state.log = element("log").checked; scheduleDraw("time"); });
  on("map-row", "change", () => { Object.assign(state, {row: Number(element("map-row").value), run: 0}); scheduleDraw("rows"); });
  on("map-run", "change", () => { state.run = Number(element("map-run").value); scheduleDraw("rows"); });
  on("comparison", "change", () => { Object.assign(state, initial(content, Number(element("comparison").value))); showComparison(); });
  on("reset", "click", () => { Object.assign(state, initial(content, state.comparison)); showComparison(); });
  let width = innerWidth; // a phone's height changes while it scrolls
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; scheduleDraw("rows"); } });
  on("controls", "submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => { readAddress(content); showComparison(); });
}

async function start() {
  content = await numbers.unpack(element("content").textContent);
  await drawing.embed(JSON.parse(element("figures").textContent));
  readAddress(content);
  addListeners();
  showComparison();
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  element("error").hidden = false;
  element("error").textContent = `This page could not be drawn (${error.message}): it needs a browser from 2023 or later.`;
  throw error;
});
