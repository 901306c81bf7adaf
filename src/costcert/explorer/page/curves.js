// Certified accuracy of all images, by list length and by size of the sticker.

import { sizeText } from "./numbers.js";
import { element } from "./ranking.js";

const $ = (id) => document.getElementById(id);
const FRAME = { left: 48, right: 410, top: 10, bottom: 200 };

function shape(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const y = (share) => FRAME.bottom - share * (FRAME.bottom - FRAME.top);
const xAxis = (first, last) => (value) =>
  FRAME.left + 12 + ((value - first) / Math.max(1, last - first)) * (FRAME.right - FRAME.left - 24);

function drawFrame(svg, ticks, x, unit) {
  const parts = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [
    shape("line", { class: "grid", x1: FRAME.left, x2: FRAME.right, y1: y(share), y2: y(share) }),
    shape("text", { x: FRAME.left - 5, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`),
  ]);
  for (const tick of ticks) {
    parts.push(shape("text", { x: x(tick), y: FRAME.bottom + 16, "text-anchor": "middle" }, tick));
  }
  parts.push(shape("text", { x: FRAME.right, y: FRAME.bottom + 29, "text-anchor": "end" }, unit));
  svg.replaceChildren(...parts);
}

const drawMarker = (svg, x) => svg.append(shape("line", { class: "now", x1: x, x2: x, y1: FRAME.top, y2: FRAME.bottom }));

// Black, which reports use for a defender of another package, is invisible in dark mode.
const visible = (colour) => (colour === "#000000" ? "var(--ink)" : colour);

// Dashes tell lines apart that coincide.
function drawCurve(svg, points, look) {
  if (!points.length) return;
  const d = points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  if (!look) {
    svg.append(shape("path", { class: "line clean", d }));
    return;
  }
  const colour = visible(look.colour);
  svg.append(shape("path", { class: "line", d, stroke: colour, "stroke-width": look.width, "stroke-dasharray": look.dash.join(" ") }));
  for (const [px, py] of points) svg.append(shape("circle", { cx: px, cy: py, r: 1.3 + look.width / 2, fill: colour }));
}

// `current` is the accuracy for the sticker of the sliders, `bySide` that for squares; both may not be loaded yet.
export function drawCurves(state, current, bySide) {
  const { k, view, about } = state;
  const defenders = about.views[view].defenders;
  const kChart = $("by-k");
  const longest = Math.min(10, state.longestList);
  const xK = xAxis(1, longest);
  drawFrame(kChart, [...Array(longest).keys()].map((i) => i + 1), xK, "list length k");
  if (k <= longest) drawMarker(kChart, xK(k));
  if (current) {
    const points = (values) => values.slice(0, longest).map((share, i) => [xK(i + 1), y(share)]);
    drawCurve(kChart, points(current.defenders[state.defender].clean), null);
    for (const name of defenders) drawCurve(kChart, points(current.defenders[name].certified), about.defenders[name]);
  }
  const sideChart = $("by-side");
  const { sides } = state;
  const first = sides[0];
  const last = sides[sides.length - 1];
  const xSide = xAxis(first, last);
  drawFrame(sideChart, sides, xSide, state.on === "original" ? "side in pixels of the original" : "side in pixels");
  if (state.width === state.height && state.width >= first && state.width <= last) drawMarker(sideChart, xSide(state.width));
  const loaded = [...bySide].filter(([, found]) => found && k <= found.k.length).sort((a, b) => a[0] - b[0]);
  for (const name of defenders) {
    const points = loaded.map(([side, found]) => [xSide(side), y(found.defenders[name].certified[k - 1])]);
    drawCurve(sideChart, points, about.defenders[name]);
  }
  $("curves-about").textContent = `of ${about.images.toLocaleString("en")} images, ${sizeText(state)} px sticker${state.on === "original" ? " on the original picture" : ""} anywhere, top ${k}`;
  const keys = defenders.map((name) => {
    const swatch = element("i");
    swatch.style.background = visible(about.defenders[name].colour);
    const value = element("b", { textContent: current && k <= current.k.length ? `${current.defenders[name].certified_percent[k - 1]} %` : "…" });
    const key = element("li", { title: about.defenders[name].meaning }, swatch, `${about.defenders[name].title} `, value);
    key.dataset.defender = name;
    return key;
  });
  if (current && k <= current.k.length) {
    const clean = element("b", { textContent: `${current.defenders[state.defender].clean_percent[k - 1]} %` });
    const key = element("li", { className: "quiet" }, "– – without a sticker ", clean);
    key.dataset.defender = "clean";
    keys.push(key);
  }
  $("curve-keys").replaceChildren(...keys);
  const values = [...$("curve-keys").children].map((key) => key.textContent).join(", ");
  kChart.setAttribute("aria-label", `Certified accuracy by list length; at ${k}: ${values}`);
  sideChart.setAttribute("aria-label", `Certified accuracy by side of the sticker at list length ${k}`);
}
