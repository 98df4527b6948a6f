// What the reader has chosen: in the address behind the #, so that a view can be kept and sent.
"use strict";

const state = {}; // see `initial`

const element = (id) => document.getElementById(id);

// A new element with properties and children; text is never read as HTML.
function made(tag, properties = {}, ...children) {
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

// Whether time that ends soon after the target leaves out more than 80 % of every run.
function isMostHidden({rows, target}, cost) {
  const judged = rows.filter((row) => row.takes_cost || cost === 0).map((row) => [row, row.runs[0].default]);
  const {soon, shortest} = numbers.ends(judged, target, cost);
  return soon < 0.2 * shortest;
}

// Reads the address; what it does not say is as at first.
function readAddress(content) {
  const words = new URLSearchParams(location.hash.slice(1));
  const place = (name, size) => Math.min(Math.max(0, parseInt(words.get(name) ?? "0", 10) || 0), size - 1);
  Object.assign(state, initial(content, place("data", content.comparisons.length)));
  const {rows} = content.comparisons[state.comparison];
  if (words.has("C") && Number(words.get("C")) >= 0) state.cost = Number(words.get("C"));
  if (words.has("target") && Number(words.get("target")) > 0) state.target = fraction(words.get("target"));
  state.evaluation = words.get("judged") ?? "";
  state.score = ["worst", "slowest"].find((name) => name === words.get("curves")) ?? "mean";
  if (words.has("whole")) state.whole = words.get("whole") !== "0";
  state.log = words.get("log") === "1";
  state.off = new Set((words.get("off") ?? "").split(",").filter(Boolean).map(Number));
  for (const [name, value] of words) if (name.startsWith("only.")) state.filters[name.slice(5)] = value;
  state.row = place("line", rows.length);
  state.run = place("seed", rows[state.row].runs.length);
}

function writeAddress(content) {
  const first = initial(content, state.comparison);
  const words = new URLSearchParams();
  if (state.comparison) words.set("data", state.comparison);
  if (state.cost !== first.cost) words.set("C", state.cost);
  if (state.target !== first.target && Number.isFinite(state.target)) words.set("target", percentOf(state.target));
  if (state.evaluation) words.set("judged", state.evaluation);
  if (state.score !== "mean") words.set("curves", state.score);
  if (state.whole !== first.whole) words.set("whole", state.whole ? "1" : "0");
  if (state.log) words.set("log", "1");
  if (state.off.size) words.set("off", [...state.off].join(","));
  for (const [name, value] of Object.entries(state.filters)) words.set(`only.${name}`, value);
  if (state.row) words.set("line", state.row);
  if (state.run) words.set("seed", state.run);
  history.replaceState(null, "", `#${words}`);
}

// 91.6 is 0.916 to the last bit, which 91.6 / 100 is not.
const fraction = (percent) => Number((Number(percent) / 100).toFixed(9));
const percentOf = (value) => Number((100 * value).toFixed(7));

// Costs the slider stops at: none, then about ten a decade around the length of a round.
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

// The evaluation a row is judged by; null where not all of its runs have it.
function evaluationOf(row) {
  const name = state.evaluation || row.runs[0].default;
  return row.runs.every((run) => name in run.evaluations) ? name : null;
}

// Which data judged rows: "test", "validation", or both.
const judgedOn = (rows) => [...new Set(rows.map((row) => row.judged_on))].join("/");

const isChosen = (row, place) => !state.off.has(place)
  && Object.entries(state.filters).every(([name, value]) => row.options[name] === value);

// The rows to show, each with its place among all rows.
function shownRows(comparison) {
  return comparison.rows.map((row, place) => ({row, place}))
    .filter(({row, place}) => isChosen(row, place) && evaluationOf(row) !== null);
}
