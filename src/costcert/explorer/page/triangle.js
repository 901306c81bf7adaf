// Votes of masks: one cell per pair of masks, the rows that decide, and the masks over the picture.

import { element } from "./ranking.js";
import { eachPair } from "./pairs.js";
import { votesText } from "./numbers.js";

const $ = (id) => document.getElementById(id);

// Mutant (i, j) at row i and column j. Row i of the defender goes down column i to the diagonal and then right.
export function drawTriangle(state, stand, isTouched, colour) {
  const box = $("strips");
  if (box.children.length !== 1) box.replaceChildren(document.createElement("canvas"));
  const [canvas] = box.children;
  const count = state.geometry.masks.regions.length;
  const side = Math.min(box.clientWidth || 320, 368);
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(side * scale)) {
    canvas.width = canvas.height = Math.round(side * scale);
    canvas.style.width = canvas.style.height = `${side}px`;
  }
  const style = getComputedStyle(document.documentElement);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, side, side);
  const cell = side / count;
  const gap = cell > 5 ? 1 : 0;
  eachPair(count, (i, j, mutant) => {
    const label = state.election.hard[mutant];
    pen.globalAlpha = isTouched[mutant] || state.election.unknown[mutant] ? 0.25 : 1;
    pen.fillStyle = label < 0 ? style.getPropertyValue("--line").trim() : colour(label);
    pen.fillRect(j * cell, i * cell, cell - gap, cell - gap);
  });
  pen.globalAlpha = 1;
  if (!stand) return;
  const ink = style.getPropertyValue("--ink").trim();
  for (let i = 0; i < count; i++) {
    if (!stand.covers[i]) continue;
    pen.beginPath();
    pen.arc((i + 0.5) * cell, (i + 0.5) * cell, Math.min(5, cell / 3), 0, 2 * Math.PI);
    pen.fillStyle = stand.stands[i] ? ink : style.getPropertyValue("--ground").trim();
    pen.strokeStyle = ink;
    pen.lineWidth = 1;
    pen.fill();
    pen.stroke();
  }
  const rival = bestRival(stand);
  if (rival !== null) drawRow(pen, stand.mostRow[rival], count, cell, colour(rival), [5, 3]);
  if (stand.leastRow >= 0) drawRow(pen, stand.leastRow, count, cell, colour(state.label), []);
}

const bestRival = (stand) => (stand.rivals.length && stand.most[stand.rivals[0]] > 0 ? stand.rivals[0] : null);

function drawRow(pen, row, count, cell, colour, dash) {
  const inset = 1;
  const corners = [[row, 0], [row + 1, 0], [row + 1, row], [count, row], [count, row + 1], [row, row + 1]];
  pen.beginPath();
  for (const [x, y] of corners) {
    pen.lineTo(Math.min(x * cell, count * cell - inset) + (x === 0 ? inset : 0), Math.min(y * cell, count * cell - inset) + (y === 0 ? inset : 0));
  }
  pen.closePath();
  pen.strokeStyle = colour;
  pen.lineWidth = 2.5;
  pen.setLineDash(dash);
  pen.stroke();
  pen.setLineDash([]);
}

// The masks that hide the sticker, and the mask of the best rival's row.
export function drawMasks(state, stand, colour) {
  const { height, width, masks } = state.geometry;
  const outline = (row, line, kind) => {
    const [[top, tall], [left, wide]] = masks.regions[row];
    const box = element("div", { className: `mask ${kind}` });
    box.dataset.mask = row;
    Object.assign(box.style, {
      top: `${(100 * top) / height}%`,
      left: `${(100 * left) / width}%`,
      height: `${(100 * tall) / height}%`,
      width: `${(100 * wide) / width}%`,
      borderColor: line,
    });
    return box;
  };
  const boxes = [];
  masks.regions.forEach((_, row) => {
    if (stand && stand.covers[row]) boxes.push(outline(row, colour(state.label), row === stand.leastRow ? "decides" : "covers"));
  });
  const rival = stand ? bestRival(stand) : null;
  if (rival !== null) boxes.push(outline(stand.mostRow[rival], colour(rival), "rival"));
  $("masks").replaceChildren(...boxes);
}

// The scores as a ranking: what the label scores at least, and what rivals score and can score with the sticker.
export function asResult(stand, label) {
  const clean = stand.scores.slice();
  const scores = stand.most.slice();
  clean[label] = scores[label] = stand.least;
  const given = new Map();
  stand.rivals.forEach((y) => {
    if (scores[y] > clean[y]) given.set(y, scores[y] - clean[y]);
  });
  const covering = stand.covers.reduce((sum, is) => sum + is, 0);
  const hides = covering === 1 ? "1 mask hides" : `${covering} masks hide`;
  return { clean, scores, given, lifted: stand.passing, passingScore: stand.least, position: stand.position, held: `${hides} the sticker here`, captioned: SCORES_CAPTION };
}

export function drawRows(state, stand) {
  const { cap, mutants } = state.election;
  const hidden = mutants - stand.isLost.reduce((sum, is) => sum + is, 0);
  const standing = stand.stands.filter((is, row) => is && stand.covers[row]).length;
  $("budget-title").textContent = "What the sticker cannot change here";
  $("budget").textContent = "";
  $("budget-bar").hidden = true;
  const name = `“${state.name(state.label)}”`;
  const sentences = [`${hidden} of ${mutants} copies hide all of it.`];
  sentences.push(
    stand.least > 0
      ? `In ${standing === 1 ? "one row" : `${standing} rows`} that hide it every copy supports ${name}, which so scores at least ${votesText(stand.least / cap)} of 1.`
      : `No row that hides it has only copies that support ${name}: nothing is sure.`
  );
  const rival = bestRival(stand);
  if (rival !== null) {
    sentences.push(`The best rival, ${state.name(rival)}, can score ${votesText(stand.most[rival] / cap)} at most (${votesText(stand.scores[rival] / cap)} without a sticker).`);
  } else sentences.push("No rival can score anything.");
  $("spent").textContent = sentences.join(" ");
}

export const TRIANGLE_CAPTION =
  "One cell per pair of masks that a copy hides (on the diagonal one mask alone), coloured by its vote; pale: it shows some of the sticker, so the attacker controls it. " +
  "The row of a mask goes down its column to the diagonal, then right. Dots: masks that hide the sticker, full where every copy of the row supports the label. " +
  "Outlined: the safe row that stands best, and dashed the best row of a rival.";
const SCORES_CAPTION =
  "Solid: the score without the sticker (of the label itself, what it scores at least). Hatched: what the sticker can add. A label that reaches the dashed line can pass.";
