// Charts of report.html, drawn as SVG from the numbers in the page. Hovering shows values, dragging zooms, a
// double click shows all again, and a click on a method hides it in every chart. Where a server keeps the page
// up to date, it also listens to it.
"use strict";

const hidden = new Set(); // methods
const chosen = new Map(); // by setting: what its chart shows, over what, and where it is zoomed to
const HEIGHT = 400, LEFT = 64, RIGHT = 14, TOP = 14, BOTTOM = 46; // pixels
const DASHES = { "-": "", "--": "7 4", "-.": "7 3 1.5 3" };

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function shape(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function number(value, digits = 4) {
  const small = value !== 0 && Math.abs(value) < 1e-3, large = Math.abs(value) >= 1e7;
  if (small || large) return Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
  return new Intl.NumberFormat("en", { maximumSignificantDigits: digits }).format(value);
}

// --- axes ---------------------------------------------------------------------------------------------

function evenTicks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function logTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.ceil((last - first + 1) / 7);
  const powers = Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
  const found = powers.filter((power) => (power - first) % every === 0).map((power) => 10 ** power);
  return found.length > 1 ? found : evenTicks(low, high, 5);
}

// Positions of values between two ends of an axis in pixels, and back.
function scale([low, high], from, to, log) {
  const [into, out] = log ? [Math.log10, (v) => 10 ** v] : [(v) => v, (v) => v];
  const start = into(low), span = into(high) - start || 1;
  return {
    at: (value) => from + ((into(value) - start) / span) * (to - from),
    back: (pixel) => out(start + ((pixel - from) / (to - from)) * span),
    ticks: (count) => (log ? logTicks(low, high) : evenTicks(low, high, count)),
  };
}

function ends(values, log) {
  const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let low = Math.min(...usable), high = Math.max(...usable);
  if (!usable.length) [low, high] = [log ? 1 : 0, log ? 10 : 1];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - Math.abs(low || 1) * 0.05, high + Math.abs(high || 1) * 0.05];
  const pad = (high - low) * 0.04;
  return log ? [low / 1.2, high * 1.2] : [low - pad, high + pad];
}

// --- one chart ----------------------------------------------------------------------------------------

function choice(words, options, now, change) {
  const label = element("label", `${words} `), select = element("select");
  for (const [value, name] of options) select.append(element("option", name, { value }));
  select.value = now;
  select.addEventListener("change", () => change(select.value));
  label.append(select);
  return label;
}

function path(xs, ys, x, y, log) {
  const points = xs.map((value, i) => [value, ys[i]]).filter(([, value]) => !log || value > 0);
  return points.map(([a, b], i) => `${i ? "L" : "M"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("");
}

function drawLines(svg, chart, view, over, x, y) {
  for (const [label, line] of Object.entries(view.lines)) {
    if (hidden.has(label)) continue;
    const { colour, dash } = chart.methods[label], xs = line[over];
    if (view.banded) {
      const there = path(xs, line.high, x, y, view.log);
      const back = path([...xs].reverse(), [...line.low].reverse(), x, y, view.log);
      if (there && back) svg.append(shape("path", { d: `${there}${back.replace("M", "L")}Z`, fill: colour, opacity: 0.15 }));
    }
    const look = { fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[dash], "stroke-linejoin": "round" };
    svg.append(shape("path", { d: path(xs, line.mean, x, y, view.log), class: "line", "data-method": label, ...look }));
    if (xs.length < 30) {
      xs.forEach((value, i) => {
        if (!view.log || line.mean[i] > 0) svg.append(shape("circle", { cx: x.at(value), cy: y.at(line.mean[i]), r: 2.6, fill: colour }));
      });
    }
  }
  for (const score of Object.values(view.references)) {
    const at = y.at(score);
    svg.append(shape("path", { d: `M0 ${at}H4000`, stroke: "#767676", "stroke-width": 1.5, "stroke-dasharray": "2 3" }));
  }
}

function drawAxes(svg, width, x, y, names) {
  for (const value of y.ticks(6)) {
    const at = y.at(value);
    svg.append(shape("path", { d: `M${LEFT} ${at}H${width - RIGHT}`, class: "grid" }));
    svg.append(shape("text", { x: LEFT - 7, y: at + 4, "text-anchor": "end" }, number(value, 6)));
  }
  for (const value of x.ticks(Math.max(2, Math.floor(width / 110)))) {
    const at = x.at(value);
    svg.append(shape("path", { d: `M${at} ${TOP}V${HEIGHT - BOTTOM}`, class: "grid" }));
    svg.append(shape("text", { x: at, y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, number(value, 6)));
  }
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  svg.append(shape("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle", class: "xname" }, names[0]));
  const turned = { x: 14, y: middle, transform: `rotate(-90 14 ${middle})`, "text-anchor": "middle", class: "yname" };
  svg.append(shape("text", turned, names[1]));
}

// The nearest point of every visible line to a value of x.
function nearest(chart, view, over, value) {
  return Object.entries(view.lines).filter(([label]) => !hidden.has(label)).map(([label, line]) => {
    let best = 0;
    line[over].forEach((at, i) => { if (Math.abs(at - value) < Math.abs(line[over][best] - value)) best = i; });
    return { label, x: line[over][best], y: line.mean[best], colour: chart.methods[label].colour };
  });
}

function plot(place, chart, view, now, names, again) {
  const width = Math.max(place.clientWidth, 260), over = now.x;
  const lines = Object.entries(view.lines).filter(([label]) => !hidden.has(label)).map(([, line]) => line);
  const heights = lines.flatMap((line) => (view.banded ? [...line.low, ...line.high] : line.mean));
  const farthest = Math.max(...lines.flatMap((line) => line[over]), 0) || 1;
  const xs = now.zoom ? now.zoom.x : [0, farthest * 1.02];
  const ys = now.zoom ? now.zoom.y : view.limits || ends([...heights, ...Object.values(view.references)], view.log);
  const x = scale(xs, LEFT, width - RIGHT, false), y = scale(ys, HEIGHT - BOTTOM, TOP, view.log);
  const svg = shape("svg", { width, height: HEIGHT, role: "img", "aria-label": `${names[1]} over ${names[0]}` });
  const id = `clip-${[...document.querySelectorAll(".plot")].indexOf(place)}`;
  const inner = { x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM };
  const clip = shape("clipPath", { id }), group = shape("g", { "clip-path": `url(#${id})` });
  clip.append(shape("rect", inner));
  drawAxes(svg, width, x, y, names);
  drawLines(group, chart, view, over, x, y);
  const mark = shape("path", { class: "mark" }), box = shape("rect", { class: "box" });
  const surface = shape("rect", { ...inner, class: "surface" }), tip = element("div", "", { class: "tip" });
  svg.append(clip, group, mark, box, surface);
  const back = element("button", "show all", { type: "button", class: "reset" });
  back.addEventListener("click", () => again(null));
  place.replaceChildren(svg, tip, ...(now.zoom ? [back] : []));
  interact({ place, svg, surface, mark, box, tip, x, y, width }, () => [chart, view, over], again);
}

function interact({ place, svg, surface, mark, box, tip, x, y, width }, shown, again) {
  let start = null;
  const position = (event) => {
    const frame = svg.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const leave = () => { tip.style.display = "none"; mark.setAttribute("d", ""); };
  surface.addEventListener("pointerdown", (event) => {
    start = position(event);
    if (event.pointerType === "mouse") surface.setPointerCapture(event.pointerId);
  });
  surface.addEventListener("pointermove", (event) => {
    const [a, b] = position(event);
    if (start && event.pointerType === "mouse" && Math.hypot(a - start[0], b - start[1]) > 4) {
      leave();
      const size = { x: Math.min(a, start[0]), y: Math.min(b, start[1]), width: Math.abs(a - start[0]), height: Math.abs(b - start[1]) };
      for (const [name, value] of Object.entries(size)) box.setAttribute(name, value);
      return;
    }
    const found = nearest(...shown(), x.back(a)).sort((one, other) => other.y - one.y);
    if (!found.length) return;
    const at = found.reduce((one, other) => (Math.abs(x.at(other.x) - a) < Math.abs(x.at(one.x) - a) ? other : one)).x;
    mark.setAttribute("d", `M${x.at(at)} ${TOP}V${HEIGHT - BOTTOM}`);
    tip.replaceChildren(element("b", number(at, 6)), ...found.map((one) => {
      const row = element("div", `${one.label}: ${number(one.y)}${one.x === at ? "" : ` (at ${number(one.x)})`}`);
      row.style.setProperty("--of", one.colour);
      return row;
    }));
    tip.style.display = "block";
    const left = x.at(at) + 14 + tip.offsetWidth > width ? x.at(at) - 14 - tip.offsetWidth : x.at(at) + 14;
    tip.style.left = `${Math.max(0, left)}px`;
  });
  surface.addEventListener("pointerup", (event) => {
    const [a, b] = position(event), from = start;
    start = null;
    if (!from || event.pointerType !== "mouse" || Math.abs(a - from[0]) < 8 || Math.abs(b - from[1]) < 8) {
      box.setAttribute("width", 0);
      return;
    }
    const order = (one, other) => [Math.min(one, other), Math.max(one, other)];
    again({ x: order(x.back(from[0]), x.back(a)), y: order(y.back(from[1]), y.back(b)) });
  });
  surface.addEventListener("pointerleave", leave);
  surface.addEventListener("dblclick", () => again(null));
}

function draw(section, data, chart) {
  const now = chosen.get(chart.name) ?? { x: "round", y: Object.keys(chart.views)[0], zoom: null };
  if (!(now.y in chart.views)) now.y = Object.keys(chart.views)[0];
  chosen.set(chart.name, now);
  const view = chart.views[now.y];
  const again = (change) => { Object.assign(now, change); draw(section, data, chart); };
  const views = Object.entries(chart.views).map(([key, one]) => [key, one.name]);
  section.querySelector(".choices").replaceChildren(
    choice("show", views, now.y, (y) => again({ y, zoom: null })),
    choice("over", Object.entries(data.across), now.x, (x) => again({ x, zoom: null })));
  section.querySelector(".methods").replaceChildren(...Object.entries(chart.methods).map(([label, { colour }]) => {
    const button = element("button", label, { "aria-pressed": !hidden.has(label), type: "button" });
    button.style.setProperty("--of", colour);
    button.addEventListener("click", () => {
      hidden.has(label) ? hidden.delete(label) : hidden.add(label);
      show();
    });
    return button;
  }));
  const dotted = Object.keys(view.references).map((label) => `dotted: ${label}`);
  section.querySelector(".note").textContent = [view.note, ...dotted].join("; ");
  plot(section.querySelector(".plot"), chart, view, now, [data.across[now.x], view.name], (zoom) => again({ zoom }));
}

// --- the page -----------------------------------------------------------------------------------------

function show() {
  const found = document.getElementById("numbers");
  if (!found) return;
  document.body.classList.add("live"); // pictures of the same curves make way
  const data = JSON.parse(found.textContent);
  for (const { across, views } of data.charts) {
    for (const view of Object.values(views)) {
      for (const [label, line] of Object.entries(view.lines)) Object.assign(line, across[label][line.at]);
    }
  }
  for (const chart of data.charts) {
    const place = [...document.querySelectorAll("[data-chart]")].find((one) => one.dataset.chart === chart.name);
    if (!place.firstChild) {
      for (const part of ["choices", "methods", "plot", "dim note"]) place.append(element("div", "", { class: part }));
    }
    draw(place, data, chart);
  }
}

function follow() {
  let stamp = document.querySelector("main").dataset.stamp;
  if (!stamp) return;
  new EventSource("events").onmessage = async (event) => {
    if (event.data === stamp) return;
    const answer = await fetch("main");
    if (!answer.ok) return;
    const old = document.querySelector("main"), open = [...document.querySelectorAll("details[open]")].length;
    const main = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    for (const place of main.querySelectorAll("[data-chart]")) { // a chart stays, with what was chosen
      const known = [...old.querySelectorAll("[data-chart]")].find((one) => one.dataset.chart === place.dataset.chart);
      if (known) place.replaceWith(known);
    }
    if (open) main.querySelectorAll("details").forEach((one) => { one.open = true; });
    old.replaceWith(main);
    stamp = main.dataset.stamp;
    show();
  };
}

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) show(); // not where a phone only hides its address bar
  width = window.innerWidth;
});
show();
follow();
