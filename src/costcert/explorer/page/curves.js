// Certified accuracy of all images, by list length and by size of the sticker.

import { element } from "./ranking.js";

const $ = (id) => document.getElementById(id);
const FRAME = { left: 48, right: 410, top: 10, bottom: 200 };

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const y = (share) => FRAME.bottom - share * (FRAME.bottom - FRAME.top);

function frame(svg, ticks, x, unit) {
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

// Lines that fall together are told apart by their dashes.
function curve(svg, points, look) {
  if (!points.length) return;
  const d = points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  if (!look) {
    svg.append(shape("path", { class: "line clean", d }));
    return;
  }
  svg.append(shape("path", { class: "line", d, stroke: look.colour, "stroke-width": look.width, "stroke-dasharray": look.dash.join(" ") }));
  for (const [px, py] of points) svg.append(shape("circle", { cx: px, cy: py, r: 1.3 + look.width / 2, fill: look.colour }));
}

// Halves are rounded as Python does, so that a number reads the same in every report.
const oneDigit = new Intl.NumberFormat("en", {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
  roundingMode: "halfEven",
});
export const percent = (share) => `${oneDigit.format(100 * share)} %`;

// `now` is the accuracy at the sticker of the sliders, `sides` that of squares, as far as it is known.
export function drawCurves(state, now, sides) {
  const { k, view, about } = state;
  const guards = about.views[view].defenders;
    const byK = $("by-k");
  const longest = Math.min(10, about.num_classes);
  const xK = (value) => FRAME.left + 12 + ((value - 1) / Math.max(1, longest - 1)) * (FRAME.right - FRAME.left - 24);
  frame(byK, [...Array(longest).keys()].map((i) => i + 1), xK, "list length k");
  if (k <= longest) byK.append(shape("line", { class: "now", x1: xK(k), x2: xK(k), y1: FRAME.top, y2: FRAME.bottom }));
  if (now) {
    const at = (values) => values.slice(0, longest).map((share, i) => [xK(i + 1), y(share)]);
    curve(byK, at(now.defenders[state.defender].clean), null);
    for (const name of guards) curve(byK, at(now.defenders[name].certified), about.defenders[name]);
  }
  const bySide = $("by-side");
  const first = about.sides[0];
  const last = about.sides[about.sides.length - 1];
  const xS = (side) => FRAME.left + 12 + ((side - first) / Math.max(1, last - first)) * (FRAME.right - FRAME.left - 24);
  frame(bySide, about.sides, xS, "pixels a side");
  if (state.width === state.height && state.width >= first && state.width <= last) {
    bySide.append(shape("line", { class: "now", x1: xS(state.width), x2: xS(state.width), y1: FRAME.top, y2: FRAME.bottom }));
  }
  const known = [...sides].filter(([, found]) => found && k <= found.k.length).sort((a, b) => a[0] - b[0]);
  for (const name of guards) {
    const points = known.map(([side, found]) => [xS(side), y(found.defenders[name].certified[k - 1])]);
    curve(bySide, points, about.defenders[name]);
  }
  $("curves-about").textContent = `of ${about.images.toLocaleString("en")} images, ${state.width} × ${state.height} px sticker anywhere, top ${k}`;
  const keys = guards.map((name) => {
    const swatch = element("i");
    swatch.style.background = about.defenders[name].colour;
    const value = element("b", { textContent: now && k <= now.k.length ? percent(now.defenders[name].certified[k - 1]) : "…" });
    const key = element("li", {}, swatch, `${about.defenders[name].title} `, value);
    key.dataset.defender = name;
    return key;
  });
  if (now && k <= now.k.length) {
    const clean = element("b", { textContent: percent(now.defenders[state.defender].clean[k - 1]) });
    const key = element("li", { className: "quiet" }, "– – without a sticker ", clean);
    key.dataset.defender = "clean";
    keys.push(key);
  }
  $("curve-keys").replaceChildren(...keys);
  const said = [...$("curve-keys").children].map((key) => key.textContent).join(", ");
  byK.setAttribute("aria-label", `Certified accuracy by list length; at ${k}: ${said}`);
  bySide.setAttribute("aria-label", `Certified accuracy by side of the sticker at list length ${k}`);
}
