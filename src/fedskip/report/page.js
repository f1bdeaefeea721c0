// Charts of report.html, drawn by Plotly from the numbers in the page; where a server keeps the page up to
// date, it also listens to it. Methods are switched off in all charts at once.
"use strict";

const off = new Set(); // methods that are not shown
const chosen = new Map(); // by setting: what its chart shows, and over what

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // Plotly reads HTML
}

function choice(words, options, now, change) {
  const label = element("label", `${words} `), select = element("select");
  for (const [value, name] of options) select.append(element("option", name, { value }));
  select.value = now;
  select.addEventListener("change", () => change(select.value));
  label.append(select);
  return label;
}

function traces(chart, view, x) {
  const drawn = [];
  for (const [label, line] of Object.entries(view.lines)) {
    if (off.has(label)) continue;
    const { colour, dash } = chart.methods[label], name = plain(label);
    const markers = line.mean.length < 30 ? "lines+markers" : "lines";
    if (view.banded) {
      drawn.push({
        x: [...line[x], ...line[x].toReversed()], y: [...line.high, ...line.low.toReversed()], fill: "toself",
        fillcolor: `${colour}26`, line: { width: 0 }, mode: "lines", hoverinfo: "skip", name,
      });
    }
    drawn.push({
      x: line[x], y: line.mean, name, mode: markers, line: { color: colour, dash, width: 2 },
      marker: { size: 5 }, hovertemplate: "%{y:.4~g} (at %{x:.4~g})", // lines have points of their own
    });
  }
  for (const [label, score] of Object.entries(view.references)) {
    const all = Object.values(view.lines).flatMap((line) => line[x]);
    drawn.push({
      x: [Math.min(...all), Math.max(...all)], y: [score, score], name: plain(label), mode: "lines",
      line: { color: "#767676", dash: "dot" }, hovertemplate: "%{y:.4~g}",
    });
  }
  return drawn;
}

function draw(section, data, chart) {
  const now = chosen.get(chart.name) ?? { x: "round", y: Object.keys(chart.views)[0] };
  if (!(now.y in chart.views)) now.y = Object.keys(chart.views)[0];
  chosen.set(chart.name, now);
  const view = chart.views[now.y], log = view.log;
  const again = (key) => (value) => { now[key] = value; draw(section, data, chart); };
  const views = Object.entries(chart.views).map(([key, one]) => [key, one.name]);
  section.querySelector(".choices").replaceChildren(
    choice("show", views, now.y, again("y")), choice("over", Object.entries(data.across), now.x, again("x")));
  section.querySelector(".methods").replaceChildren(...Object.entries(chart.methods).map(([label, { colour }]) => {
    const button = element("button", label, { "aria-pressed": !off.has(label), type: "button" });
    button.style.setProperty("--of", colour);
    button.addEventListener("click", () => {
      off.has(label) ? off.delete(label) : off.add(label);
      show();
    });
    return button;
  }));
  const dotted = Object.keys(view.references).map((label) => `dotted: ${label}`);
  section.querySelector(".note").textContent = [view.note, ...dotted].join("; ");
  const range = view.limits && (log ? view.limits.map(Math.log10) : view.limits);
  const axis = { gridcolor: "#e6e9ee", zeroline: false, automargin: true };
  Plotly.react(section.querySelector(".plot"), traces(chart, view, now.x), {
    uirevision: `${now.x} ${now.y}`, hovermode: "x unified", showlegend: false, dragmode: "zoom",
    margin: { l: 60, r: 15, t: 30, b: 65 }, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff", font: { color: "#1c2430" },
    xaxis: { ...axis, title: { text: data.across[now.x] }, rangemode: "tozero" },
    yaxis: { ...axis, title: { text: plain(view.name) }, type: log ? "log" : "linear", ...(range && { range }) },
  }, { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
}

function show() {
  const found = document.getElementById("numbers");
  if (!found) return;
  const data = JSON.parse(found.textContent);
  for (const chart of data.charts) {
    const place = [...document.querySelectorAll("[data-chart]")].find((one) => one.dataset.chart === chart.name);
    if (!place.firstChild) {
      for (const part of ["choices", "methods", "plot", "dim note"]) place.append(element("div", "", { class: part }));
    }
    draw(place, data, chart);
  }
  document.body.classList.add("live"); // pictures of the same curves make way
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
    for (const place of main.querySelectorAll("[data-chart]")) { // a chart stays, with its zoom
      const known = [...old.querySelectorAll("[data-chart]")].find((one) => one.dataset.chart === place.dataset.chart);
      if (known) place.replaceWith(known);
    }
    if (open) main.querySelectorAll("details").forEach((one) => { one.open = true; });
    old.replaceWith(main);
    stamp = main.dataset.stamp;
    show();
  };
}

show();
follow();
