// The reader's choices, kept in the address after #, so that a view can be saved and sent.
"use strict";

const state = {}; // see `initial`

// Clients whose mean accuracy is drawn and timed.
const GROUPS = {mean: "all clients", worst: "worst tenth", slowest: "slowest tenth", fastest_quarter: "fastest quarter",
  second_quarter: "2nd quarter", third_quarter: "3rd quarter", slowest_quarter: "slowest quarter"};

const element = (id) => document.getElementById(id);

// Creates an element with properties and children; text is never parsed as HTML.
function create(tag, properties = {}, ...children) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

function initial(content, place) {
  const comparison = content.comparisons[place];
  const [cost] = comparison.communications;
  return {comparison: place, cost, target: comparison.target, evaluation: "", score: "mean",
    whole: isMostHidden(comparison, cost), log: false, off: new Set(), filters: {}, row: 0, run: 0};
}

// True if cutting time soon after the target would hide more than 80 % of every run.
function isMostHidden({rows, target}, cost) {
  const judged = rows.filter((row) => row.takes_cost || cost === 0).map((row) => [row, row.runs[0].default]);
  const {afterTarget, shortest} = numbers.ends(judged, target, cost);
  return afterTarget < 0.2 * shortest;
}

// Reads choices from the address; the others get their initial values.
function readAddress(content) {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const place = (name, size) => Math.min(Math.max(0, parseInt(parameters.get(name) ?? "0", 10) || 0), size - 1);
  Object.assign(state, initial(content, place("data", content.comparisons.length)));
  const {rows} = content.comparisons[state.comparison];
  const cost = Number(parameters.get("C"));
  if (parameters.has("C") && cost >= 0 && cost < Infinity) state.cost = cost;
  if (parameters.has("target") && Number(parameters.get("target")) > 0) state.target = fraction(parameters.get("target"));
  state.evaluation = parameters.get("judged") ?? "";
  state.score = Object.keys(GROUPS).find((name) => name === parameters.get("curves")) ?? "mean";
  if (parameters.has("whole")) state.whole = parameters.get("whole") !== "0";
  state.log = parameters.get("log") === "1";
  state.off = new Set((parameters.get("off") ?? "").split(",").filter(Boolean).map(Number));
  for (const [name, value] of parameters) if (name.startsWith("only.")) state.filters[name.slice(5)] = value;
  state.row = place("line", rows.length);
  state.run = place("seed", rows[state.row].runs.length);
}

function writeAddress(content) {
  const first = initial(content, state.comparison);
  const parameters = new URLSearchParams();
  if (state.comparison) parameters.set("data", state.comparison);
  if (state.cost !== first.cost) parameters.set("C", state.cost);
  if (state.target !== first.target && Number.isFinite(state.target)) parameters.set("target", percentOf(state.target));
  if (state.evaluation) parameters.set("judged", state.evaluation);
  if (state.score !== "mean") parameters.set("curves", state.score);
  if (state.whole !== first.whole) parameters.set("whole", state.whole ? "1" : "0");
  if (state.log) parameters.set("log", "1");
  if (state.off.size) parameters.set("off", [...state.off].join(","));
  for (const [name, value] of Object.entries(state.filters)) parameters.set(`only.${name}`, value);
  if (state.row) parameters.set("line", state.row);
  if (state.run) parameters.set("seed", state.run);
  history.replaceState(null, "", `#${parameters}`);
}

// Rounded, since 91.6 / 100 is not exactly 0.916.
const fraction = (percent) => Number((Number(percent) / 100).toFixed(9));
const percentOf = (value) => Number((100 * value).toFixed(7));

// Costs at which the slider stops: 0, then ten per decade around the length of a round.
function sliderCosts(comparison) {
  const mean = comparison.rows.flatMap(({runs}) => runs.map(({compute_time: times}) =>
    times.reduce((sum, time) => sum + time, 0) / Math.max(1, times.length)));
  const middle = Math.floor(Math.log10(Math.max(1e-9, Math.min(...mean.filter((time) => time > 0)))));
  const steps = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
  const costs = [0];
  for (let decade = middle - 1; decade < middle + 4; decade++) {
    for (const step of steps) costs.push(Number((step * 10 ** decade).toPrecision(3)));
  }
  return [...new Set([...costs, ...comparison.communications])].sort((a, b) => a - b);
}

// The evaluation that judges a row; null if some of its runs lack it.
function evaluationOf(row) {
  const name = state.evaluation || row.runs[0].default;
  return row.runs.every((run) => name in run.evaluations) ? name : null;
}

// Data on which rows were judged: "test", "validation", or both.
const judgedOn = (rows) => [...new Set(rows.map((row) => row.judged_on))].join("/");

const isChosen = (row, place) => !state.off.has(place)
  && Object.entries(state.filters).every(([name, value]) => row.options[name] === value);

// The selected rows, each with its place among all rows.
function shownRows(comparison) {
  return comparison.rows.map((row, place) => ({row, place}))
    .filter(({row, place}) => isChosen(row, place) && evaluationOf(row) !== null);
}
