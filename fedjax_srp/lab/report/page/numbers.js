// Computes the numbers of the page from the data of the runs, without access to the document.
// The same in Python: History.elapsed, History.time_to, table.comparison, table.render and drawing.band.
"use strict";

const numbers = (() => {
  // Decompresses the content of the page, and converts its lists of numbers to arrays.
  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const content = await new Response(stream).json();
    const toArrays = (object, names) => {
      for (const name of names) object[name] = object[name] && Float64Array.from(object[name], number);
    };
    for (const comparison of content.comparisons) {
      comparison.target = number(comparison.target);
      for (const row of comparison.rows) {
        row.host_seconds = number(row.host_seconds);
        row.compile_seconds = number(row.compile_seconds);
        toArrays(row.distributions, Object.keys(row.distributions));
        for (const run of row.runs) {
          toArrays(run, ["compute_time", "communicated", "stage", "cohort_size", "eval_round"]);
          for (const found of Object.values(run.evaluations)) toArrays(found, Object.keys(found));
        }
      }
    }
    return content;
  }

  // JSON has strings for numbers that are not finite.
  function number(value) {
    return typeof value === "string" ? {inf: Infinity, "-inf": -Infinity, nan: NaN}[value] : value;
  }

  const last = (values) => (values.length ? values[values.length - 1] : NaN);

  // Lowest and highest finite value; 0 and 100 if there is none.
  function extent(values) {
    const known = values.filter(Number.isFinite);
    return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : [0, 100];
  }

  // Simulated time at the end of each round, from round 0 on.
  function elapsed(run, cost) {
    const times = new Float64Array(run.compute_time.length + 1);
    times[0] = number(run.start.time) + cost * run.start.passes;
    for (let i = 0; i < run.compute_time.length; i++) {
      times[i + 1] = times[i] + (run.compute_time[i] + cost * run.communicated[i]);
    }
    return times;
  }

  // Simulated time at each evaluation.
  function evalElapsed(run, cost) {
    const times = elapsed(run, cost);
    return Float64Array.from(run.eval_round, (round) => times[round]);
  }

  // First evaluation in which the mean accuracy of a group of clients reaches the target; -1 if none does.
  const firstReached = (run, evaluation, target, of = "mean") =>
    run.evaluations[evaluation][of].findIndex((value) => value >= target);

  // Time until then; Infinity if it never does.
  function timeTo(run, evaluation, target, cost, of = "mean") {
    const place = firstReached(run, evaluation, target, of);
    return place < 0 ? Infinity : evalElapsed(run, cost)[place];
  }

  // Communication cost at which two rows, each with its evaluation, reach the target in the same mean time; null if no
  // positive cost does, a run never reaches it, or a time is only a bound. The round in which a run reaches it does not
  // depend on the cost.
  function breakEven(one, other, target, of = "mean") {
    const messages = (run, round) => run.communicated.subarray(0, round).reduce((sum, is) => sum + is, run.start.passes);
    const lines = [one, other].map(([row, evaluation]) => {
      const places = row.runs.map((run) => firstReached(run, evaluation, target, of));
      if (places.includes(-1) || !row.takes_cost) return null;
      if (row.runs.some((run) => reachedAtOnce(run, evaluation, target, of))) return null;
      const mean = (value) => row.runs.reduce((sum, run, i) => sum + value(run, run.eval_round[places[i]]), 0) / places.length;
      return [mean((run, round) => elapsed(run, 0)[round]), mean(messages)]; // counted, so that equal numbers cancel
    });
    if (lines.includes(null)) return null;
    const [[start, slope], [otherStart, otherSlope]] = lines;
    const cost = (otherStart - start) / (slope - otherSlope);
    return cost > 0 && Number.isFinite(cost) ? cost : null;
  }

  // Ends of simulated time for rows, each with its evaluation: `whole`, of the longest run; `shortest`, of the shortest
  // run; `afterTarget`, soon after the last run reached the target (Infinity if one never does).
  function ends(judged, target, cost, of = "mean") {
    const runs = judged.flatMap(([row, evaluation]) => row.runs.map((run) => [run, evaluation]));
    const lengths = runs.map(([run]) => elapsed(run, cost).findLast(Number.isFinite)); // infinite times are not drawn
    const afterTarget = 1.25 * Math.max(0, ...runs.map(([run, evaluation]) => timeTo(run, evaluation, target, cost, of)));
    return {whole: Math.max(1e-12, ...lengths), shortest: Math.min(...lengths), afterTarget: afterTarget > 0 ? afterTarget : Infinity};
  }

  // True if the first evaluation reached the target, so that its time is an upper bound.
  function reachedAtOnce(run, evaluation, target, of = "mean") {
    return firstReached(run, evaluation, target, of) === 0 && Number.isFinite(evalElapsed(run, 0)[0]);
  }

  // Mean and sample standard deviation, which is NaN for one value or a mean that is not finite.
  function spread(values) {
    if (!values.length) return [NaN, NaN];
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    if (values.length < 2 || !Number.isFinite(mean)) return [mean, NaN];
    const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    return [mean, Math.sqrt(squares / (values.length - 1))];
  }

  // Numbers of a row of the table under an evaluation: accuracy and times are those of a group of clients.
  function summary(row, evaluation, target, costs, of = "mean") {
    const found = row.runs.map((run) => run.evaluations[evaluation]);
    const overlap = (cost) => !row.takes_cost && cost > 0;
    return {
      runs: found.length,
      accuracy: spread(found.map((scores) => last(scores[of]))),
      worst: spread(found.map(({worst}) => last(worst))),
      quarters: [0, 1, 2, 3].map((place) => spread(found.map(({quartiles}) => quartiles[place]))),
      reached: row.runs.filter((run) => Number.isFinite(timeTo(run, evaluation, target, 0, of))).length,
      atOnce: row.runs.filter((run) => reachedAtOnce(run, evaluation, target, of)).length,
      times: costs.map((cost) =>
        overlap(cost) ? [NaN, NaN] : spread(row.runs.map((run) => timeTo(run, evaluation, target, cost, of)))),
    };
  }

  // Ratio of the twin's mean time to the row's; NaN if one is missing, infinite or a bound.
  function speedUp(own, twin, place) {
    if (!twin || own.atOnce || twin.atOnce) return NaN;
    const [time, other] = [own.times[place][0], twin.times[place][0]];
    return Number.isFinite(time) && Number.isFinite(other) && time > 0 ? other / time : NaN;
  }

  // Rounds as Python does, ties to the even digit. toFixed rounds them up, and from 1e21 on, where all numbers are whole,
  // it writes an exponent.
  function fixed(value, digits) {
    if (!Number.isFinite(value)) return "-";
    if (Math.abs(value) >= 1e21) return BigInt(value) + (digits ? `.${"0".repeat(digits)}` : "");
    const text = value.toFixed(digits);
    const exact = Math.abs(value).toFixed(Math.min(100, digits + 60));
    const [, kept, rest] = exact.match(new RegExp(digits ? `^(\\d+\\.\\d{${digits}})(\\d*)$` : "^(\\d+)\\.(\\d*)$"));
    if (!/^50*$/.test(rest) || Number(kept[kept.length - 1]) % 2) return text;
    return (value < 0 ? "-" : "") + kept;
  }

  function percent([mean, deviation]) {
    if (!Number.isFinite(mean)) return "-";
    return fixed(100 * mean, 1) + (Number.isFinite(deviation) ? ` ± ${fixed(100 * deviation, 1)}` : "");
  }

  function timeText(own, twin, place) {
    const [mean, deviation] = own.times[place];
    if (Number.isNaN(mean)) return "-";
    if (!Number.isFinite(mean)) return own.reached ? `${own.reached} of ${own.runs} seeds` : "not reached";
    const digits = mean >= 100 ? 0 : mean >= 1 || !mean ? 1 : 1 - Math.floor(Math.log10(mean));
    const bound = own.atOnce ? "≤ " : "";
    const text = bound + fixed(mean, digits) + (Number.isFinite(deviation) ? ` ± ${fixed(deviation, digits)}` : "");
    const factor = speedUp(own, twin, place);
    return Number.isFinite(factor) ? `${text} (${fixed(factor, factor >= 0.1 ? 1 : 2)}x)` : text;
  }

  // Interpolates a curve linearly at increasing places, not before its first point; NaN spreads to its neighbours. A
  // curve that has ended keeps its last value.
  function interpolated(places, xs, ys) {
    let left = 0;
    return places.map((x) => {
      if (x >= last(xs)) return last(ys);
      while (left < xs.length - 2 && xs[left + 1] <= x) left++;
      if (x === xs[left]) return ys[left];
      const slope = (ys[left + 1] - ys[left]) / (xs[left + 1] - xs[left]);
      return slope * (x - xs[left]) + ys[left];
    });
  }

  const lastStart = (curves) => Math.max(...curves.map(({xs}) => xs[0]));

  // True if some curves begin after others have ended, so that they have no mean.
  const areApart = (curves) => curves.length > 1 && lastStart(curves) >= Math.min(...curves.map(({xs}) => last(xs)));

  // Lowest, mean and highest value of several curves at the points of all of them, from the last beginning to the last
  // end; `running` counts the curves that have not ended.
  function band(curves) {
    if (curves.length === 1) {
      const [{xs, ys}] = curves;
      return {xs: [...xs], low: null, mean: [...ys], high: null, running: [...xs].map(() => 1)};
    }
    const union = new Set(curves.flatMap(({xs}) => [...xs]));
    const xs = [...union].filter((x) => x >= lastStart(curves)).sort((a, b) => a - b);
    const values = curves.map((curve) => interpolated(xs, curve.xs, curve.ys));
    const pointwise = (combine) => xs.map((_, place) => combine(values.map((of) => of[place])));
    return {
      xs,
      low: pointwise((all) => Math.min(...all)),
      mean: pointwise((all) => all.reduce((sum, value) => sum + value, 0) / all.length),
      high: pointwise((all) => Math.max(...all)),
      running: xs.map((x) => curves.filter((curve) => x <= last(curve.xs)).length),
    };
  }

  // Splits a band where a curve ends: [number of running curves, first place, end], each joined to the one before.
  function pieces(running) {
    const starts = [...running.keys()].filter((i) => i === 0 || running[i] !== running[i - 1]);
    return starts.map((start, i) => [running[start], Math.max(0, start - 1), starts[i + 1] ?? running.length]);
  }

  // First round of each stage but the first.
  const stageStarts = (run) => [...run.stage.keys()].filter((i) => i > 0 && run.stage[i] !== run.stage[i - 1]);

  return {
    unpack, elapsed, evalElapsed, breakEven, timeTo, ends, spread, summary, percent, timeText, fixed, band, areApart, pieces, interpolated,
    stageStarts, last, extent,
  };
})();
