// Fills Bokeh's figures with the numbers of the selected rows.
"use strict";

const drawing = (() => {
  const MARKERS = {circle: "●", square: "■", triangle: "▲", diamond: "◆", inverted_triangle: "▼", plus: "+", x: "✕",
    star: "★", hex: "⬢", asterisk: "✱"};
  const DASHES = {solid: "solid", dashed: "10 4", dotted: "2 4"}; // lengths that differ clearly
  const ISOLATED_MARKERS = {solid: "circle", dashed: "square", dotted: "triangle"}; // twins have the same colour
  const documents = {}, axes = {};

  async function embed(items) {
    const models = Bokeh.require("models/index");
    axes.linear = {scale: new models.LinearScale(), ticker: new models.BasicTicker()};
    axes.log = {scale: new models.LogScale(), ticker: new models.LogTicker()};
    for (const item of items) documents[item.target_id] = (await Bokeh.embed.embed_item(item)).roots[0].model.document;
  }

  const model = (figure, name) => documents[figure].get_model_by_name(name);

  // Put rows, given as objects, into the columns of a data source.
  function fill(figure, name, rows) {
    const source = model(figure, name), value = (row, column) => (column === "dash" ? DASHES[row.dash] : row[column]);
    const values = (column) => rows.map((row) => value(row, column));
    source.data = Object.fromEntries(Object.keys(source.data).map((column) => [column, values(column)]));
  }

  function range(figure, name, start, end) {
    const found = model(figure, name);
    found.setv({start, end, reset_start: start, reset_end: end});
  }

  function labelAxis(figure, text) {
    for (const axis of documents[figure].roots()[0].left) if ("axis_label" in axis) axis.axis_label = text;
  }

  const percents = (values) => values.map((value) => 100 * value);

  // Points of a line that are joined to no other, which a line does not show.
  function isolatedPoints({xs, ys, color, dash, name}) {
    const isSeen = (i) => Number.isFinite(xs[i]) && Number.isFinite(ys[i]);
    return [...xs.keys()].filter((i) => isSeen(i) && !isSeen(i - 1) && !isSeen(i + 1))
      .map((i) => ({x: xs[i], y: ys[i], color, name, marker: ISOLATED_MARKERS[dash]}));
  }

  // Draws one line per row with a band over its repeats, thinner where some have ended; repeats that do not overlap get
  // a thin line each. Returns flags of what was drawn.
  function curves(figure, shown, xsOf, stageStarts) {
    const lines = [], dots = [], bands = [], stages = [];
    let hasThinLines = false, hasHeldEnds = false;
    for (const {row} of shown) {
      const evaluation = evaluationOf(row);
      const single = row.runs.map((run) => ({xs: xsOf(run), ys: run.evaluations[evaluation][state.score]}));
      const style = {color: row.color, dash: row.dash, name: row.name};
      if (!single[0].xs.length) continue;
      if (numbers.areApart(single)) {
        hasThinLines = hasThinLines || single.some(({xs}) => xs.length > 1);
        for (const {xs, ys} of single) lines.push({xs: [...xs], ys: percents([...ys]), width: 0.9, ...style});
        dots.push(...lines.slice(-single.length).flatMap(isolatedPoints));
        continue;
      }
      const {xs, low, mean, high, running} = numbers.band(single), ys = percents(mean);
      dots.push(...isolatedPoints({xs, ys, ...style}));
      for (const [count, first, end] of numbers.pieces(running)) {
        hasHeldEnds = hasHeldEnds || count < single.length;
        const width = 2 * (1 + 2 * count / single.length) / 3;
        lines.push({xs: xs.slice(first, end), ys: ys.slice(first, end), width, ...style});
      }
      if (low) bands.push({xs: [...xs, ...[...xs].reverse()], ys: percents([...low, ...high.reverse()]), color: row.color});
      if (row.runs.length === 1) {
        const places = stageStarts(row.runs[0]).filter((x) => x >= xs[0] && x <= numbers.last(xs));
        const values = percents(numbers.interpolated(places, xs, mean));
        places.forEach((x, i) => stages.push({x, y: values[i], color: row.color}));
      }
    }
    fill(figure, "bands", bands);
    fill(figure, "lines", lines);
    fill(figure, "dots", dots);
    fill(figure, "stages", stages);
    const data = judgedOn(shown.map(({row}) => row));
    labelAxis(figure, `${state.score === "mean" ? `mean ${data} accuracy` : `${data} accuracy of the ${GROUPS[state.score]}`} (%)`);
    return {hasThinLines, hasHeldEnds, hasBands: bands.length > 0, hasDots: dots.length > 0, hasStages: stages.length > 0};
  }

  // Sets the range from 0 to the end, with room for whole dots.
  const rangeFromZero = (figure, end, {hasDots}) => range(figure, "x", 0, hasDots ? 1.02 * end : end);

  // Draws the target, and sets the range of accuracies as in the other figures: it begins where curves begin, but not far
  // below target and ends.
  function drawTarget(figure, shown) {
    model(figure, "target").location = Number.isFinite(state.target) ? 100 * state.target : null;
    range(figure, "y", lowest(shown), 100);
  }

  function lowest(shown) {
    const drawn = shown.flatMap(({row}) => row.runs.map((run) => run.evaluations[evaluationOf(row)][state.score]));
    const ends = drawn.map(numbers.last).filter(Number.isFinite);
    const target = Number.isFinite(state.target) ? state.target : 1;
    const far = Math.min(target - 0.4, Math.min(1, ...ends) - 0.1);
    const begin = Math.min(target, ...drawn.flatMap((scores) => [...scores].filter(Number.isFinite)));
    return 100 * Math.max(0, far, begin - Math.max(0.01, 0.05 * (1 - begin)));
  }

  function overTime(shown) {
    const drawn = shown.filter(({row}) => row.takes_cost || state.cost === 0);
    const found = curves("time", drawn, (run) => numbers.evalElapsed(run, state.cost), (run) => {
      const times = numbers.elapsed(run, state.cost);
      return numbers.stageStarts(run).map((round) => times[round]);
    });
    const {whole, afterTarget} = numbers.ends(drawn.map(({row}) => [row, evaluationOf(row)]), state.target, state.cost, state.score);
    const end = state.whole ? whole : Math.min(afterTarget, whole);
    const {scale, ticker} = axes[state.log ? "log" : "linear"], [plot] = documents.time.roots();
    plot.x_scale = scale;
    for (const part of [...plot.below, ...plot.center]) if ("ticker" in part && part.dimension !== 1) part.ticker = ticker;
    if (state.log) {
      const first = Math.min(...drawn.flatMap(({row}) => row.runs.map((run) => numbers.evalElapsed(run, state.cost).find((t) => t > 0))));
      range("time", "x", Number.isFinite(first) ? first : end / 100, end);
    } else rangeFromZero("time", end, found);
    drawTarget("time", shown);
    cohorts(drawn, whole);
    return {...found, end, whole};
  }

  function overRounds(shown) {
    const found = curves("rounds", shown, (run) => [...run.eval_round], numbers.stageStarts);
    rangeFromZero("rounds", Math.max(1, ...shown.flatMap(({row}) => row.runs.map((run) => run.compute_time.length))), found);
    return found;
  }

  // Draws the number of clients in a round, as steps over simulated time, for the first run of each row.
  function cohorts(drawn, end) {
    const most = Math.max(1, ...drawn.flatMap(({row}) => row.runs[0].cohort_size.reduce((a, b) => Math.max(a, b), 0)));
    fill("cohort", "lines", drawn.map(({row}) => {
      const run = row.runs[0], times = numbers.elapsed(run, state.cost);
      const sizes = run.cohort_size.slice(0, times.findLastIndex(Number.isFinite)); // of rounds that end
      const xs = [], ys = [];
      for (let i = 0; i < sizes.length; i++) {
        if (i && i + 1 < sizes.length && sizes[i] === sizes[i - 1] && sizes[i] === sizes[i + 1]) continue;
        xs.push(times[i], times[i + 1]);
        ys.push(sizes[i], sizes[i]);
      }
      return {xs, ys, color: row.color, dash: row.dash, width: 2, name: row.name};
    }));
    range("cohort", "x", 0, end);
    range("cohort", "y", 0, 1.05 * most);
  }

  function map(run, numClients) {
    const {map: found, compute_time: {length: rounds}} = run;
    const {ndarray} = Bokeh.require("core/util/ndarray");
    const image = found && ndarray(found.shares, {dtype: "float32", shape: found.shape});
    fill("map", "image", found ? [{image, x: 0.5, y: 0.5, dw: rounds, dh: numClients}] : []);
    range("map", "x", 0.5, rounds + 0.5);
    range("map", "y", 0.5, numClients + 0.5);
  }

  // A stroke of a standard deviation on both sides of a mean, within the possible accuracies.
  const stroke = (mean, deviation) => ({low: Math.max(0, 100 * (mean - deviation)), high: Math.min(100, 100 * (mean + deviation))});

  function quarters(shown) {
    const lines = [], dots = [], spreads = [];
    shown.forEach(({row}, i) => {
      const {quarters: found} = numbers.summary(row, evaluationOf(row), state.target, []);
      const xs = found.map((_, q) => q + 1 + (shown.length > 1 ? 0.24 * (i / (shown.length - 1) - 0.5) : 0));
      const style = {color: row.color, dash: row.dash, name: row.name, width: 1.5};
      lines.push({xs, ys: found.map(([mean]) => 100 * mean), ...style});
      found.forEach(([mean, deviation], q) => {
        dots.push({x: xs[q], y: 100 * mean, ...style});
        if (Number.isFinite(deviation)) {
          spreads.push({x: xs[q], ...stroke(mean, deviation), ...style});
        }
      });
    });
    fill("quarters", "lines", lines);
    fill("quarters", "dots", dots);
    fill("quarters", "spread", spreads);
    const [least, most] = numbers.extent([...dots.map(({y}) => y), ...spreads.flatMap(({low, high}) => [low, high])]);
    range("quarters", "x", 0.6, 4.4);
    range("quarters", "y", least - 0.1 * (most - least) - 0.5, Math.min(100.5, most + 0.1 * (most - least) + 0.5));
  }

  // Height in pixels of a row of a figure with one row per line: about forty fit on a printed page.
  const rowHeight = (count) => Math.max(20, Math.min(42, 780 / Math.max(3, count)));
  const LETTER = 6.5, LINE = 15; // in pixels: largest mean width of a letter of a name, and height of a line

  // Names wrapped to the width of a figure, and the spacing of its rows: 1 if every name fits one line.
  function fitNames(figure, shown) {
    const letters = Math.max(12, Math.floor((element(figure).clientWidth - 40) / LETTER));
    const texts = shown.map(({row}) => withoutMath(wrapped(row.name, letters)));
    const lines = Math.max(1, ...texts.map((text) => text.split("\n").length));
    return {texts, spacing: 1 + (lines - 1) * LINE / rowHeight(shown.length)};
  }

  // Bokeh would load a library from the network for mathematics, $$, \[ and \(: break these up with an invisible blank.
  const withoutMath = (text) => text.replace(/\$(?=\$)|\\(?=[[(])/g, "$&\u200b");

  // Wraps a text into lines of at most `letters` letters, at blanks if possible.
  function wrapped(text, letters) {
    const lines = [""];
    for (let word of text.split(" ")) {
      if (lines[lines.length - 1] && lines[lines.length - 1].length + 1 + word.length > letters) lines.push("");
      for (; word.length > letters; word = word.slice(letters)) lines.splice(-1, 1, word.slice(0, letters), "");
      lines[lines.length - 1] += (lines[lines.length - 1] ? " " : "") + word;
    }
    return lines.join("\n");
  }

  // Lays out rows from top to bottom, each name above the marks of its row.
  function layOutRows(figure, {texts, spacing}, left, right) {
    const count = Math.max(1, texts.length);
    fill(figure, "names", texts.map((text, i) => ({x: left, y: -spacing * i + 0.19, text})));
    documents[figure].roots()[0].height = 110 + rowHeight(count) * spacing * Math.max(3, count);
    range(figure, "x", left, right);
    range(figure, "y", -spacing * (count - 1) - 0.65, spacing - 0.25);
  }

  // True if the clients of a row have so few test points, and so few possible accuracies, that quartiles mean nothing.
  const FEW = 20; // test points
  const isCoarse = (row) => row.runs.every((run) => run.test_points < FEW && run.evaluations[run.default].clients !== null);
  const meanOf = (row, evaluation) => numbers.spread(row.runs.map((run) => numbers.last(run.evaluations[evaluation].mean)))[0];
  const allNaN = (names) => Object.fromEntries(names.map((name) => [name, NaN]));

  function clients(shown, names) {
    const rows = fitNames("clients", shown), boxes = [], dots = [];
    shown.forEach(({row}, i) => {
      const evaluation = evaluationOf(row), y = -rows.spacing * i;
      const quantiles = Object.fromEntries(names.map((name, q) => [name, 100 * row.distributions[evaluation][q]]));
      const found = isCoarse(row) ? {...allNaN(names), q0: quantiles.q0, q50: 100 * meanOf(row, evaluation)} : quantiles;
      boxes.push({y, low: y - 0.16, high: y + 0.16, name: row.name, color: row.color, ...found});
      const counts = new Map();
      for (const score of row.runs.flatMap((run) => [...run.evaluations[evaluation].clients ?? []])) {
        counts.set(score, (counts.get(score) ?? 0) + 1);
      }
      counts.delete(NaN);
      for (const [score, count] of counts) dots.push({x: 100 * score, y: isCoarse(row) ? y : y - 0.27, count, color: row.color});
    });
    const most = Math.max(...dots.map(({count}) => count));
    for (const dot of dots) dot.size = Math.max(3, 0.38 * rowHeight(shown.length) * Math.sqrt(dot.count / Math.max(most, 9)));
    fill("clients", "dots", dots);
    fill("clients", "boxes", boxes);
    const [least] = numbers.extent(boxes.map(({q0}) => q0));
    layOutRows("clients", rows, Math.max(-2, least - 4), 103);
    return dots.length > 0;
  }

  // Draws final accuracies under every evaluation, with a marker for each of `all` evaluations.
  function evaluations(shown, all) {
    const shapes = Object.keys(MARKERS), rows = fitNames("evaluations", shown);
    const dots = [], spreads = [];
    shown.forEach(({row}, i) => {
      finalAccuracies(row).forEach(([name, [mean, deviation]], place) => {
        const y = -rows.spacing * i + 0.06 - 0.16 * place;
        const marker = shapes[all.indexOf(name) % shapes.length];
        dots.push({x: 100 * mean, y, color: row.color, marker, name: row.name, evaluation: name});
        if (Number.isFinite(deviation)) spreads.push({y, ...stroke(mean, deviation)});
      });
    });
    fill("evaluations", "dots", dots);
    fill("evaluations", "spread", spreads);
    const [least, most] = numbers.extent([...dots.map(({x}) => x), ...spreads.flatMap(({low, high}) => [low, high])]);
    const room = 0.06 * Math.max(1, most - least);
    layOutRows("evaluations", rows, Math.max(-2, least - room), Math.min(102, most + room));
    return all.map((name, i) => `${Object.values(MARKERS)[i % shapes.length]} ${name}`);
  }

  // [evaluation, [mean, deviation] of the final accuracy over the runs] for evaluations that all runs have.
  function finalAccuracies(row) {
    return Object.keys(row.runs[0].evaluations).filter((name) => row.runs.every((run) => name in run.evaluations))
      .map((name) => [name, numbers.spread(row.runs.map((run) => numbers.last(run.evaluations[name].mean)))]);
  }

  return {embed, model, drawTarget, overTime, overRounds, map, quarters, clients, isCoarse, evaluations, finalAccuracies};
})();
