"use strict";
// Draws the data of this page. Texts of results only ever become text nodes. Plots are drawn when they
// come into sight: a problem's when its row is opened.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const canPlot = typeof vegaEmbed === "function";
const colors = {winner: "#b4481e", default: "#2f5d9b", candidate: "#9aa3b2", failed: "#c9ced8"};
// What a test, or a reader with a console, asks for.
const state = window.kilnReport = {plots: 0, drawing: 0, errors: []};

// --- elements and numbers -------------------------------------------------------------------------

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  made.append(...children.flat().filter(child => child !== null && child !== undefined));
  return made;
}

const digits = (value, count = 3) => Number(value.toPrecision(count)).toLocaleString("en-US", {maximumSignificantDigits: count});
function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const [factor, unit] = unitOf(seconds);
  return digits(seconds * factor) + " " + unit;
}
const unitOf = seconds => seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
const times = factor => digits(factor) + "×";
const percent = part => digits(100 * part, 2) + " %";
const plural = (count, what) => count.toLocaleString("en-US") + " " + what + (count === 1 ? "" : "s");
function rate(perSecond, unit) {
  const prefixes = ["", "K", "M", "G", "T", "P"];
  let prefix = 0;
  for (; perSecond >= 999.5 && prefix + 1 < prefixes.length; ++prefix) perSecond /= 1000;
  return digits(perSecond) + " " + prefixes[prefix] + unit;
}

const problemText = problem => problem.problem.map(([name, value]) => name + "=" + value).join(", ");
const kernelText = problem => problem.kernel + (problem.types.length ? "<" + problem.types.join(", ") + ">" : "");
const subjectText = problem => kernelText(problem) + " " + problemText(problem);
function valueText(result, parameter, value) {
  const name = result.parameters[parameter].names[value];
  return name === undefined ? String(value) : name;
}
function configText(result, candidate, parameters) {
  const config = result.candidates.config[candidate];
  return (parameters || config.map((_, i) => i))
    .map(i => result.parameters[i].name + "=" + valueText(result, i, config[i])).join(", ");
}
// Parameters in which these candidates differ; all others say nothing.
const varying = (result, candidates) => result.parameters.map((_, i) => i).filter(i =>
  new Set(candidates.map(c => result.candidates.config[c][i])).size > 1);
function roleOf(result, candidate) {
  return candidate === result.winner ? "winner" : candidate === result.default ? "default" : "candidate";
}
// Measured candidates, the fastest first.
const measured = result => result.candidates.seconds.map((_, i) => i)
  .filter(i => result.candidates.seconds[i] !== null)
  .sort((a, b) => result.candidates.seconds[a] - result.candidates.seconds[b]);

// --- plots ----------------------------------------------------------------------------------------

const look = {
  font: "system-ui, DejaVu Sans, sans-serif", background: null,
  view: {stroke: null}, axis: {labelFontSize: 11, titleFontSize: 11, titleFontWeight: 500, titleColor: "#5c667a",
    labelColor: "#1d2433", gridColor: "#eceff3", domainColor: "#b9c0cc", tickColor: "#b9c0cc", labelLimit: 420, labelFlush: false, labelOverlap: "greedy"},
  legend: {orient: "top", columns: 2, labelFontSize: 11, titleFontSize: 11, titleFontWeight: 500, labelLimit: 190},
};
// A box with a title; what to draw is asked for when it is drawn.
function plot(title, note, makeSpec) {
  const place = element("div");
  const box = element("div", {class: "plot"}, element("h3", {}, title), element("p", {class: "soft"}, note), place);
  if (!canPlot) return null;
  const draw = () => {
    ++state.drawing;
    vegaEmbed(place, {$schema: "https://vega.github.io/schema/vega-lite/v6.json", config: look, ...makeSpec()},
              {actions: false, renderer: "svg", ast: true})
      .then(() => ++state.plots, error => {
        state.errors.push(String(error));
        console.error(error);
        place.replaceChildren(element("p", {class: "bad"}, "This plot cannot be drawn: " + error.message));
      })
      .finally(() => --state.drawing);
  };
  const seen = new IntersectionObserver(entries => {
    if (!entries.some(entry => entry.isIntersecting)) return;
    seen.disconnect();
    draw();
  }, {rootMargin: "400px"});
  seen.observe(box);
  return box;
}

const roleColor = {field: "role", title: null,
  scale: {domain: ["winner", "default", "candidate"], range: [colors.winner, colors.default, colors.candidate]}};
// A logarithmic axis only where times differ enough to need one.
function timeAxis(seconds, title = "time") {
  const least = Math.min(...seconds), most = Math.max(...seconds);
  const [factor, unit] = unitOf(least);
  const scale = most / least > 8 ? {type: "log", nice: false, padding: 12} : {zero: false, nice: true, padding: 8};
  return {factor, unit, scale, title: title + " (" + unit + ")"};
}

function rankPlot(result, order) {
  return plot("All candidates", "Measured candidates, the fastest first.", () => {
    const c = result.candidates, axis = timeAxis(order.map(i => c.seconds[i]));
    const values = order.map((i, rank) => ({rank: rank + 1, t: c.seconds[i] * axis.factor, role: roleOf(result, i),
      time: time(c.seconds[i]), config: configText(result, i)}));
    const tooltip = [{field: "rank", title: "rank"}, {field: "time", title: "time"}, {field: "config", title: "config"}];
    const x = {field: "rank", type: "quantitative", title: "rank", scale: {zero: false, padding: 8}, axis: {tickMinStep: 1, format: "d"}};
    const y = {field: "t", type: "quantitative", title: axis.title, scale: axis.scale};
    return {width: 440, height: 220, data: {values}, encoding: {x, y, tooltip}, layer: [
      {transform: [{filter: "datum.role === 'candidate'"}], mark: {type: "point", filled: true, size: 26, opacity: .75},
        encoding: {color: roleColor}},
      {transform: [{filter: "datum.role !== 'candidate'"}], mark: {type: "point", filled: true, size: 90},
        encoding: {color: roleColor}}]};
  });
}

function searchPlot(result, bySeconds) {
  const c = result.candidates;
  return plot(bySeconds ? "How the search went, in seconds" : "How the search went",
    bySeconds ? "Seconds of tuning this problem, compiling included; the line is the best so far."
              : "Candidates in the order tried; the line is the best so far, marks at the bottom failed.", () => {
    const done = result.order.map((candidate, place) => ({candidate, x: bySeconds ? c.after[candidate] : place + 1}))
      .filter(each => each.x !== null);
    const tried = done.filter(each => c.seconds[each.candidate] !== null);
    const axis = timeAxis(tried.map(each => c.seconds[each.candidate]));
    const points = tried.map(each => ({x: each.x, t: c.seconds[each.candidate] * axis.factor, role: roleOf(result, each.candidate),
      time: time(c.seconds[each.candidate]), config: configText(result, each.candidate)}));
    const failed = done.filter(each => c.seconds[each.candidate] === null).map(each => ({x: each.x,
      why: result.texts[c.status[each.candidate]], config: configText(result, each.candidate)}));
    const steps = result.best_so_far.filter(step => !bySeconds || step.after !== undefined)
      .map(step => ({x: bySeconds ? step.after : step.evaluation, t: step.best * axis.factor}));
    const x = {field: "x", type: "quantitative", title: bySeconds ? "seconds" : "evaluations", scale: {zero: bySeconds, nice: true},
      axis: bySeconds ? {} : {tickMinStep: 1, format: "d"}};
    const y = {field: "t", type: "quantitative", title: axis.title, scale: axis.scale};
    return {width: 440, height: 220, layer: [
      {data: {values: points}, mark: {type: "point", filled: true, opacity: .8},
        encoding: {x, y, color: roleColor, size: {condition: {test: "datum.role === 'candidate'", value: 28}, value: 90}, tooltip: [{field: "time", title: "time"}, {field: "config", title: "config"}]}},
      ...(!failed.length ? [] : [{data: {values: failed},
        mark: {type: "tick", orient: "vertical", thickness: 2, size: 9, color: colors.failed, y: "height", yOffset: -5},
        encoding: {x, tooltip: [{field: "why", title: "status"}, {field: "config", title: "config"}]}}]),
      {data: {values: steps}, mark: {type: "line", interpolate: "step-after", color: colors.winner, strokeWidth: 2}, encoding: {x, y}}]};
  });
}

function finalPlot(result, order) {
  const c = result.candidates;
  const shown = order.slice(0, 12);
  for (const i of [result.winner, result.default])
    if (i !== null && c.seconds[i] !== null && !shown.includes(i)) shown.push(i);
  const parameters = varying(result, shown);
  return plot("The fastest, with intervals", "95 % intervals of where a candidate's time lies, by its samples." +
    (parameters.length ? " Labels name the parameters in which these differ." : ""), () => {
    const axis = timeAxis(shown.flatMap(i => [c.low[i] ?? c.seconds[i], c.high[i] ?? c.seconds[i]]));
    const values = shown.map((i, place) => ({place, label: (place + 1) + "  " + (configText(result, i, parameters) || "the only one"),
      t: c.seconds[i] * axis.factor, role: roleOf(result, i), time: time(c.seconds[i]), samples: c.samples[i],
      low: (c.low[i] ?? c.seconds[i]) * axis.factor, high: (c.high[i] ?? c.seconds[i]) * axis.factor,
      interval: c.low[i] === null ? "too few samples" : time(c.low[i]) + " to " + time(c.high[i]), config: configText(result, i)}));
    const y = {field: "label", type: "nominal", title: null, sort: {field: "place"}, axis: {labelLimit: 290, ticks: false, domain: false}};
    const tooltip = ["time", "interval", "samples", "config"].map(field => ({field, title: field}));
    return {width: 300, height: {step: 21}, data: {values}, encoding: {y, tooltip}, layer: [
      {mark: {type: "rule", strokeWidth: 2}, encoding: {color: roleColor, x2: {field: "high"},
        x: {field: "low", type: "quantitative", title: axis.title, scale: axis.scale}}},
      {mark: {type: "point", filled: true, size: 60}, encoding: {color: roleColor,
        x: {field: "t", type: "quantitative", title: axis.title, scale: axis.scale}}}]};
  });
}

function parameterPlots(result, order) {
  const parameters = varying(result, order);
  if (!parameters.length) return null;
  return plot("Time against each parameter", "Every measured candidate; the line joins the best of each value. " +
    "Parameters with one value are left out.", () => {
    const c = result.candidates, axis = timeAxis(order.map(i => c.seconds[i]));
    const one = parameter => {
      const sorted = [...new Set(order.map(i => c.config[i][parameter]))].sort((a, b) => a - b)
        .map(value => valueText(result, parameter, value));
      const values = order.map(i => ({v: valueText(result, parameter, c.config[i][parameter]), t: c.seconds[i] * axis.factor,
        role: roleOf(result, i), time: time(c.seconds[i]), config: configText(result, i)}));
      const best = sorted.map(v => ({v, t: Math.min(...values.filter(each => each.v === v).map(each => each.t))}));
      const x = {field: "v", type: "nominal", sort: sorted, title: result.parameters[parameter].name, axis: {labelAngle: 0, labelOverlap: true}};
      const y = {field: "t", type: "quantitative", title: axis.title, scale: axis.scale};
      return {width: 210, height: 150, layer: [
        {data: {values: best}, mark: {type: "line", color: "#d9a48f", strokeWidth: 2}, encoding: {x, y}},
        {data: {values}, mark: {type: "point", filled: true, size: 24, opacity: .7},
          encoding: {x, y, color: roleColor, tooltip: [{field: "time", title: "time"}, {field: "config", title: "config"}]}}]};
    };
    return {columns: 4, spacing: 16, concat: parameters.map(one), resolve: {scale: {y: "shared", color: "shared"}}};
  });
}

const kMostLines = 300;
function parallelPlot(result, order) {
  const parameters = varying(result, order);
  if (parameters.length < 2) return null;
  const step = Math.ceil(order.length / kMostLines);
  const shown = order.filter((_, rank) => rank < kMostLines / 3 || rank % step === 0);
  return plot("Parallel coordinates", "A line is a candidate, dark lines are fast, the blue one is the winner." +
    (shown.length < order.length ? ` The fastest and every ${step}th of ${order.length}.` : ""), () => {
    const c = result.candidates, axis = timeAxis(order.map(i => c.seconds[i]));
    const names = parameters.map(parameter => result.parameters[parameter].name).concat("time");
    const lines = [], labels = [];
    const least = Math.log(c.seconds[order[0]]), range = Math.log(c.seconds[order[order.length - 1]]) - least || 1;
    const places = parameters.map((parameter, axisNumber) => {
      const sorted = [...new Set(order.map(i => c.config[i][parameter]))].sort((a, b) => a - b);
      const place = value => sorted.indexOf(value) / (sorted.length - 1);
      const skip = Math.ceil(sorted.length / 12);
      sorted.forEach((value, i) => i % skip === 0 && labels.push({axis: axisNumber, y: place(value), label: valueText(result, parameter, value)}));
      return place;
    });
    labels.push({axis: parameters.length, y: 0, label: time(c.seconds[order[0]])},
                {axis: parameters.length, y: 1, label: time(c.seconds[order[order.length - 1]])});
    for (const i of [...shown].reverse()) {
      const more = {line: i, t: c.seconds[i] * axis.factor, time: time(c.seconds[i]), config: configText(result, i)};
      parameters.forEach((parameter, axisNumber) => lines.push({axis: axisNumber, y: places[axisNumber](c.config[i][parameter]), ...more}));
      lines.push({axis: parameters.length, y: (Math.log(c.seconds[i]) - least) / range, ...more});
    }
    const width = Math.min(1120, 110 * names.length);
    const x = {field: "axis", type: "quantitative", title: null, scale: {domain: [-.15, names.length - .6], nice: false},
      axis: {values: names.map((_, i) => i), grid: true, orient: "top", domain: false, ticks: false, labelFontWeight: 600,
        labelExpr: JSON.stringify(names).replace(/</g, "\\u003c") + "[datum.value]"}};
    const y = {field: "y", type: "quantitative", axis: null, scale: {domain: [-.05, 1.05], nice: false}};
    return {width, height: 260, layer: [
      {data: {values: lines}, mark: {type: "line", strokeWidth: 1.4, opacity: .55}, encoding: {x, y, detail: {field: "line"},
        color: {field: "t", type: "quantitative", title: axis.title, scale: {type: axis.scale.type || "linear", scheme: "lightorange", reverse: true}},
        tooltip: [{field: "time", title: "time"}, {field: "config", title: "config"}]}},
      {data: {values: lines.filter(each => each.line === result.winner)}, mark: {type: "line", strokeWidth: 3, color: "#2f5d9b"},
        encoding: {x, y, order: {field: "axis"}}},
      {data: {values: labels}, mark: {type: "text", align: "left", dx: 4, fontSize: 11, color: "#1d2433"},
        encoding: {x, y, text: {field: "label"}}}]};
  });
}

function alternativesPlot(result) {
  const c = result.candidates, timed = result.alternatives.filter(a => a.best !== undefined);
  if (!timed.length) return null;
  const absent = result.alternatives.filter(a => a.why_not !== undefined).map(a => a.name);
  return plot("Alternatives side by side", "The best candidate of each alternative, with its interval." +
    (absent.length ? ` Without ${absent.join(", ")}: see the table.` : ""), () => {
    const axis = timeAxis(timed.flatMap(a => [c.low[a.best] ?? c.seconds[a.best], c.high[a.best] ?? c.seconds[a.best]]));
    const values = timed.map(a => ({name: a.name, t: c.seconds[a.best] * axis.factor, time: time(c.seconds[a.best]),
      low: (c.low[a.best] ?? c.seconds[a.best]) * axis.factor, high: (c.high[a.best] ?? c.seconds[a.best]) * axis.factor,
      role: roleOf(result, a.best), config: configText(result, a.best)}));
    const y = {field: "name", type: "nominal", title: null, sort: {field: "t", op: "min"}};
    const tooltip = ["name", "time", "config"].map(field => ({field, title: field}));
    return {width: 420, height: {step: 34}, data: {values}, encoding: {y, tooltip}, layer: [
      {mark: {type: "bar", size: 20, opacity: .85}, encoding: {color: roleColor,
        x: {field: "t", type: "quantitative", title: axis.title, scale: {zero: true}}}},
      {mark: {type: "rule", strokeWidth: 2}, encoding: {x: {field: "low", type: "quantitative"}, x2: {field: "high"}}}]};
  });
}

function rooflinePlot(device, problems) {
  const points = [];
  for (const problem of problems) {
    const result = problem.results[0];
    if (!(result.flops > 0) || !(result.bytes > 0)) continue;
    for (const role of ["default", "winner"])
      if (problem[role] !== null) points.push({intensity: result.flops / result.bytes, rate: result.flops / problem[role], role,
        subject: subjectText(problem), shown: rate(result.flops / problem[role], "FLOP/s"), moved: rate(result.bytes / problem[role], "B/s")});
  }
  if (!points.length) return null;
  const roof = device.roofline;
  return plot("Roofline", (roof ? "Lines are what the device was measured to do at best" +
      (roof.tensor_flops_per_second ? " (dashed: tensor cores)." : ".")
    : "What the device can do at best is not known: `kiln roofline` measures it.") +
    " Points above a line are of data that fits a cache.", () => {
    const least = Math.min(...points.map(p => p.intensity)) / 2, most = Math.max(...points.map(p => p.intensity)) * 2;
    const lines = [];
    const line = (kind, peak) => {
      if (!roof || !(peak > 0) || !(roof.bytes_per_second > 0)) return;
      const ridge = peak / roof.bytes_per_second;
      for (const intensity of [least, Math.min(Math.max(ridge, least), Math.max(most, 2 * ridge)), Math.max(most, 2 * ridge)])
        lines.push({kind, intensity, rate: Math.min(peak, intensity * roof.bytes_per_second)});
    };
    line("cores", roof && roof.flops_per_second);
    line("tensor cores", roof && roof.tensor_flops_per_second);
    const x = {field: "intensity", type: "quantitative", title: "operations per byte", scale: {type: "log", nice: false}, axis: {format: "~g"}};
    const y = {field: "rate", type: "quantitative", title: "operations per second", scale: {type: "log", nice: true}, axis: {format: "~s"}};
    const roofs = !lines.length ? [] : [{data: {values: lines}, mark: {type: "line", color: "#5c667a"}, encoding: {x, y,
        strokeDash: {field: "kind", legend: null, scale: {domain: ["cores", "tensor cores"], range: [[1, 0], [6, 4]]}}}}];
    return {width: 440, height: 260, layer: [...roofs,
      {data: {values: points}, mark: {type: "point", filled: true, size: 55, opacity: .85}, encoding: {x, y,
        color: {field: "role", title: null, scale: {domain: ["winner", "default"], range: [colors.winner, colors.default]}},
        tooltip: [{field: "subject", title: "problem"}, {field: "role", title: "config"}, {field: "shown", title: "computes"}, {field: "moved", title: "moves"}]}}]};
  });
}

// --- the whole model ------------------------------------------------------------------------------

const defaultOrWinner = problem => problem.default ?? problem.winner;
function modelPlot(device, problems) {
  return plot("Where the time goes", "The sum over all problems" + (device.weighted ? ", each times how often it is launched" : "") +
    ", by kernel: with default configs and with winners.", () => {
    const sums = Object.create(null);  // so that any name is just a name
    for (const problem of problems) {
      if (problem.winner === null) continue;
      const sum = sums[kernelText(problem)] ??= {default: 0, winner: 0};
      sum.default += problem.weight * defaultOrWinner(problem);
      sum.winner += problem.weight * problem.winner;
    }
    const axis = timeAxis([device.winner, device.default]);
    const kernels = Object.entries(sums).sort((a, b) => b[1].default - a[1].default);
    const values = kernels.flatMap(([kernel, sum], place) => ["default", "winner"].map(which =>
      ({kernel, place, which: which === "default" ? "defaults" : "winners", t: sum[which] * axis.factor, time: time(sum[which])})));
    return {width: 440, height: {step: 44}, data: {values}, mark: {type: "bar", size: 30}, encoding: {
      y: {field: "which", type: "nominal", title: null, sort: ["defaults", "winners"]},
      x: {field: "t", type: "quantitative", title: axis.title},
      color: {field: "kernel", type: "nominal", title: null, scale: {scheme: "tableau20"}, sort: kernels.map(([kernel]) => kernel)},
      order: {field: "place"},
      tooltip: [{field: "kernel", title: "kernel"}, {field: "which", title: "configs"}, {field: "time", title: "time"}]}};
  });
}

const kMostGains = 15;
function gainPlot(device, problems) {
  const gained = problem => problem.weight * (defaultOrWinner(problem) - problem.winner);
  const shown = problems.filter(problem => problem.winner !== null && gained(problem) > 0)
    .sort((a, b) => gained(b) - gained(a)).slice(0, kMostGains);
  if (!shown.length) return null;
  return plot("What was gained", "Time saved against the default" + (device.weighted ? ", times how often it is launched" : "") +
    (problems.length > shown.length ? `: the ${shown.length} problems that gained most.` : "."), () => {
    const axis = timeAxis([gained(shown[0])]);
    const values = shown.map((problem, place) => ({place, label: subjectText(problem), t: gained(problem) * axis.factor,
      saved: time(gained(problem)), per: time(problem.default) + " → " + time(problem.winner), factor: times(problem.default / problem.winner)}));
    return {width: 300, height: {step: 21}, data: {values}, mark: {type: "bar", color: colors.winner, size: 13}, encoding: {
      y: {field: "label", type: "nominal", title: null, sort: {field: "place"}, axis: {labelLimit: 250, ticks: false}},
      x: {field: "t", type: "quantitative", title: axis.title.replace("time", "saved")},
      tooltip: [{field: "label", title: "problem"}, {field: "saved", title: "saved"}, {field: "per", title: "a launch"}, {field: "factor", title: "speedup"}]}};
  });
}

const card = (value, text, note) => element("div", {class: "card"}, element("b", {}, value), text,
  note ? element("div", {class: "soft"}, note) : null);

function deviceSection(device, problems) {
  const tuned = problems.filter(problem => problem.winner !== null);
  const speedups = tuned.filter(problem => problem.default !== null).map(problem => problem.default / problem.winner).sort((a, b) => a - b);
  const stayed = tuned.filter(problem => problem.results[0].winner === problem.results[0].default).length;
  const section = element("section", {}, element("h2", {}, device.name));
  if (!tuned.length) return section;
  const sum = device.weighted ? "weighted sum of all problems" : "sum of all problems, each launched once";
  section.append(element("div", {class: "cards"},
    card(times(device.default / device.winner), "faster than the defaults", sum),
    card(time(device.default) + " → " + time(device.winner), "defaults → winners", "saved: " + percent(1 - device.winner / device.default)),
    card(String(problems.length), problems.length === 1 ? "problem" : "problems", plural(new Set(problems.map(kernelText)).size, "kernel")),
    speedups.length ? card(times(speedups[speedups.length >> 1]), "median speedup",
      "from " + times(speedups[0]) + " to " + times(speedups[speedups.length - 1])) : null,
    card(String(stayed), "stay on their default")));
  if (device.untimed_defaults)
    section.append(element("p", {class: "soft"}, `Of ${plural(device.untimed_defaults, "problem")} the default could not be timed: ` +
      "they count as not gained."));
  section.append(element("div", {class: "plots columns"}, modelPlot(device, tuned), gainPlot(device, tuned), rooflinePlot(device, tuned)));
  return section;
}

// --- one problem ----------------------------------------------------------------------------------

function facts(problem, result) {
  const lines = [];
  const line = (name, ...value) => lines.push(element("tr", {}, element("th", {}, name), element("td", {}, ...value)));
  const c = result.candidates, config = i => element("span", {class: "config"}, configText(result, i));
  const at = i => c.seconds[i] === null ? result.texts[c.status[i]] : time(c.seconds[i]) +
    (c.low[i] === null ? "" : ` (${time(c.low[i])} to ${time(c.high[i])}, ${plural(c.samples[i], "sample")})`);
  if (result.winner !== null) line("winner", at(result.winner) + "  ", config(result.winner));
  line("default", at(result.default) + "  ", config(result.default));
  const rates = result.rates || {};
  const shown = [];
  if (rates.tflops) shown.push(rate(rates.tflops * 1e12, "FLOP/s"));
  if (rates.gb_per_s) shown.push(rate(rates.gb_per_s * 1e9, "B/s"));
  if (rates.bound) shown.push(`${digits(rates.roofline_percent)} % of the roofline (${rates.bound})`);
  if (shown.length) line("winner's rates", shown.join(", "));
  if (result.why_not_the_fastest) line("why not the fastest", result.why_not_the_fastest);
  line("search", `strategy ${result.strategy || "–"}, ` + (result.complete ? "complete" : `ended by: ${result.end}`) + "; " +
    Object.entries(result.counts).map(([status, count]) => `${count} ${status}`).join(", "));
  const space = result.space;
  if (space.combinations) line("space", `${digits(space.combinations)} combinations, ${space.exact ? "" : "about "}${digits(space.allowed)} allowed` +
    space.rejected.map(r => `; ${digits(r.count)} refused: ${r.reason}`).join(""));
  const spent = result.tuning;
  if (spent) line("this tuning", `${digits(spent.wall_s)} s: compilers ${digits(spent.compile_s)} s, verifying ${digits(spent.verify_s)} s, ` +
    `timing ${digits(spent.time_s)} s, searching ${digits(spent.search_s)} s`);
  for (const warning of result.warnings) line("warning", warning);
  line("source", element("span", {class: "config"}, result.source || "–"));
  return element("div", {class: "box"}, element("table", {}, lines));
}

// Ranks, or results of edited sources, side by side.
function sideBySide(problem, chosen, choose) {
  const rows = problem.results.map((result, i) => {
    const c = result.candidates, ranks = result.ranks || {};
    return element("tr", {}, element("td", {}, element("button", {class: i === chosen ? "chosen" : "", onclick: () => choose(i)}, i === chosen ? "shown" : "show")),
      element("td", {}, ranks.rank === undefined ? "–" : `${ranks.rank} of ${ranks.size}`),
      element("td", {class: "number"}, time(c.seconds[result.default])),
      element("td", {class: "number"}, result.winner === null ? "–" : time(c.seconds[result.winner])),
      element("td", {class: "config"}, result.winner === null ? "–" : configText(result, result.winner)),
      element("td", {class: "number"}, String(c.status.length)),
      element("td", {class: "config"}, ranks.plan_digest ? ranks.plan_digest.slice(0, 16) : ranks.why || "–"),
      element("td", {class: "config"}, (!result.alternatives && problem.results[0].alternatives ? `kernel ${result.kernel} by itself: ` : "") + result.source));
  });
  // A choice's kernels have configs of their own.
  const alike = problem.results.filter(result => !result.alternatives === !problem.results[0].alternatives);
  const winners = new Set(alike.filter(result => result.winner !== null).map(result => configText(result, result.winner)));
  return element("div", {class: "box scroll"}, element("h3", {}, "Side by side"),
    element("p", {class: "soft"}, `${problem.results.length} results of this problem: ` +
      (winners.size === 1 ? `${alike.length === problem.results.length ? "all" : "those of the choice"} have the same winner.` : `${winners.size} different winners.`)),
    element("table", {}, element("tr", {}, ["", "rank", "default", "winner", "winner's config", "candidates", "plan", "source"].map(name => element("th", {}, name))), rows));
}

const kMostRows = 40;
function whyTable(result, order) {
  const c = result.candidates;
  const rest = c.status.map((_, i) => i).filter(i => c.seconds[i] === null);
  const all = order.concat(rest), parameters = varying(result, all);
  const body = element("tbody");
  const row = (i, place) => element("tr", {}, element("td", {class: "number"}, place < order.length ? String(place + 1) : "–"),
    element("td", {class: "number"}, c.seconds[i] === null ? "–" : time(c.seconds[i])),
    element("td", {class: "config"}, configText(result, i, parameters)),
    element("td", {}, element("div", {class: "reason"}, i === result.winner ? element("b", {class: "good"}, "winner") : null,
      i === result.default ? (i === result.winner ? " (the default) " : element("b", {}, "default: ")) : null,
      c.seconds[i] === null ? element("b", {class: "bad"}, result.texts[c.status[i]] + (c.why[i] === c.status[i] ? "" : ": ")) : null,
      c.why[i] === null || c.why[i] === c.status[i] ? "" : result.texts[c.why[i]])));
  const show = (from, to) => body.append(...all.slice(from, to).map((i, k) => row(i, from + k)));
  show(0, kMostRows);
  const more = all.length <= kMostRows ? null : element("button", {onclick: event => {
    show(kMostRows);
    event.target.remove();
  }}, `show all ${all.length}`);
  const reasons = Object.create(null);
  for (const i of rest) {
    const text = result.texts[c.status[i]] + (c.why[i] === c.status[i] || c.why[i] === null ? "" : ": " + result.texts[c.why[i]].split("\n")[0]);
    reasons[text] = (reasons[text] || 0) + 1;
  }
  const summary = Object.entries(reasons).sort((a, b) => b[1] - a[1]);
  return element("div", {class: "box scroll"}, element("h3", {}, "Why each other lost"),
    summary.length ? element("table", {}, summary.slice(0, 12).map(([reason, count]) =>
      element("tr", {}, element("td", {class: "number"}, count + " ×"), element("td", {class: "config"}, reason)))) : null,
    element("table", {}, element("thead", {}, element("tr", {}, element("th", {class: "number"}, "rank"), element("th", {class: "number"}, "time"),
      element("th", {}, parameters.length < result.parameters.length ? "parameters that differ" : "config"), element("th", {}, "why"))), body), more);
}

function versionsTable(result) {
  const rows = [...Object.entries(result.hardware), ...Object.entries(result.versions)];
  if (!rows.length) return null;
  return element("div", {class: "box scroll"}, element("h3", {}, "Versions and environment"), element("table", {}, rows.map(([name, value]) =>
    element("tr", {}, element("th", {}, name), element("td", {class: "config"}, value)))));
}

function alternativesTable(result) {
  const c = result.candidates;
  return element("div", {class: "box"}, element("h3", {}, "Alternatives"), element("table", {},
    element("tr", {}, ["alternative", "best", "host", "candidates", "failed"].map(name => element("th", {}, name))),
    result.alternatives.map(a => a.why_not !== undefined ? element("tr", {class: "soft"}, element("td", {}, a.name),
      element("td", {colspan: "4"}, "took no part: " + a.why_not)) :
      element("tr", {}, element("td", {}, a.name, a.best !== undefined && a.best === result.winner ? " (winner)" : ""),
      element("td", {}, a.best === undefined ? "–" : time(c.seconds[a.best])),
      element("td", {title: "The host's time for a launch"}, a.best === undefined || c.host[a.best] === null ? "–" : time(c.host[a.best])), element("td", {}, String(a.candidates)), element("td", {}, String(a.failed))))));
}

function detail(problem) {
  const place = element("div");
  const choose = which => {
    const result = problem.results[which], order = measured(result);
    const timed = result.order.length > 0 && result.order.every(i => result.candidates.after[i] !== null);
    const plots = !order.length ? [] : [finalPlot(result, order), rankPlot(result, order), searchPlot(result, false),
      timed ? searchPlot(result, true) : null, parameterPlots(result, order), parallelPlot(result, order)];
    if (result.alternatives) plots.unshift(alternativesPlot(result));
    place.replaceChildren(...[facts(problem, result),
      problem.results.length > 1 ? sideBySide(problem, which, choose) : null,
      result.alternatives ? alternativesTable(result) : null,
      element("div", {class: "plots box", style: "background: none; border: none; padding: 0"}, plots),
      whyTable(result, order), versionsTable(result)].filter(part => part));
  };
  choose(0);
  return place;
}

// --- all problems ---------------------------------------------------------------------------------

function problemsTable() {
  const deviceOf = problem => data.devices[problem.device];
  const share = problem => problem.winner === null ? null : problem.weight * problem.winner / deviceOf(problem).winner;
  const columns = [
    ["kernel", kernelText, kernelText],
    ["problem", problemText, null],
    ["weight", problem => digits(problem.weight), problem => problem.weight, true, data.devices.some(device => device.weighted)],
    ["default", problem => time(problem.default), problem => problem.default ?? -1, true],
    ["winner", problem => time(problem.winner), problem => problem.winner ?? -1, true],
    ["speedup", problem => problem.default && problem.winner ? times(problem.default / problem.winner) : "–",
      problem => problem.default && problem.winner ? problem.default / problem.winner : 0, true],
    ["share", problem => problem.winner === null ? "–" : percent(share(problem)), problem => share(problem) ?? -1, true],
    ["candidates", problem => String(problem.results[0].candidates.status.length), problem => problem.results[0].candidates.status.length, true],
    ["search", problem => problem.results[0].complete ? "complete" : problem.results[0].end, problem => problem.results[0].complete ? "" : problem.results[0].end],
    ["results", problem => String(problem.results.length), problem => problem.results.length, true, data.problems.some(problem => problem.results.length > 1)],
    ["device", problem => deviceOf(problem).name, problem => problem.device, false, data.devices.length > 1],
  ].filter(column => column[4] !== false);
  const body = element("tbody");
  const rows = data.problems.map((problem, number) => {
    const row = element("tr", {class: "problem", id: "problem-" + number, tabindex: "0"},
      columns.map(([, text, , isNumber]) => element("td", isNumber ? {class: "number"} : {}, text(problem))));
    let opened = null;
    const toggle = () => {
      row.classList.toggle("open");
      if (opened) opened = opened.remove();
      else row.after(opened = element("tr", {class: "detail"}, element("td", {colspan: String(columns.length)}, detail(problem))));
    };
    row.addEventListener("click", toggle);
    row.addEventListener("keydown", event => event.key === "Enter" && toggle());
    const text = (subjectText(problem) + " " + deviceOf(problem).name).toLowerCase();
    return {problem, row, text, toggle, rows: () => opened ? [row, opened] : [row]};
  });
  let sorted = null, ascending = false;
  const arrange = () => body.append(...rows.flatMap(each => each.rows()));
  const heads = columns.map(([name, , key, isNumber]) => {
    const head = element("th", {class: (key ? "sorts " : "") + (isNumber ? "number" : "")}, name);
    if (key) head.addEventListener("click", () => {
      ascending = sorted === name ? !ascending : !isNumber;
      sorted = name;
      rows.sort((a, b) => {
        const x = key(a.problem), y = key(b.problem);
        return (x < y ? -1 : x > y ? 1 : 0) * (ascending ? 1 : -1);
      });
      arrange();
    });
    return head;
  });
  const filter = element("input", {type: "search", placeholder: "Filter by kernel, problem, type", oninput: event => {
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const each of rows) for (const row of each.rows()) row.hidden = !words.every(word => each.text.includes(word));
  }});
  arrange();
  const open = () => {  // #problem-3
    const wanted = rows.find(each => "#" + each.row.id === location.hash);
    if (!wanted || wanted.rows().length > 1) return;
    wanted.toggle();
    wanted.row.scrollIntoView();
  };
  window.addEventListener("hashchange", open);
  return [element("section", {}, element("h2", {}, "Problems"),
    element("p", {class: "soft"}, "A row opens to its candidates; a heading sorts."), filter,
    element("div", {class: "box scroll"}, element("table", {}, element("thead", {}, element("tr", {}, heads)), body))), open];
}

// What is the same for all results, once; where it differs, each value with its count.
function environmentSection() {
  const seen = Object.create(null);
  for (const problem of data.problems) for (const result of problem.results)
    for (const [name, value] of [...Object.entries(result.hardware), ...Object.entries(result.versions), ["source", result.source]])
      ((seen[name] ??= Object.create(null))[value] ??= 0, ++seen[name][value]);
  const kMost = 8;
  const values = counts => {
    const sorted = Object.entries(counts).sort((a, b) => b[1] - a[1]);
    const lines = sorted.slice(0, kMost).map(([value, count]) => element("div", {}, value, sorted.length > 1 ? ` (${plural(count, "result")})` : ""));
    return sorted.length > kMost ? [...lines, element("div", {class: "soft"}, `and ${sorted.length - kMost} more`)] : lines;
  };
  const section = element("section", {}, element("h2", {}, "Versions and environment"), element("div", {class: "box scroll"},
    element("table", {}, Object.entries(seen).map(([name, counts]) => element("tr", {}, element("th", {}, name), element("td", {class: "config"}, values(counts)))))));
  if (data.passed_over.length) section.append(element("div", {class: "box scroll"}, element("h3", {}, "Passed over"),
    element("p", {class: "soft"}, `${plural(data.passed_over.length, "file")} without a result that could be read.`),
    element("table", {}, data.passed_over.map(each => element("tr", {}, element("td", {class: "config"}, each.path), element("td", {}, each.why))))));
  return section;
}

const results = data.problems.reduce((sum, problem) => sum + problem.results.length, 0);
const [table, open] = problemsTable();
page.replaceChildren(element("h1", {}, "Kiln report"),
  element("p", {class: "soft"}, `${plural(data.problems.length, "problem")}, ${plural(results, "result")}, kiln ${data.kiln}` +
    (data.passed_over.length ? `; ${plural(data.passed_over.length, "file")} passed over` : "")),
  ...(canPlot ? [] : [element("div", {class: "box notice"}, "There are no plots in this report: the Kiln that made it was built without them.")]),
  ...data.devices.map((device, number) => deviceSection(device, data.problems.filter(problem => problem.device === number))),
  table, environmentSection());
open();
})();
