// What a sticker at one place can do, in integers: the same formulas as costcert/defenders;
// tests/explorer/test_explorer.py compares the two. It runs on every movement, without a request to the service.

import { heldBy, pairsTouched, standing } from "./pairs.js";

// Whether a segment of `length` pixels from `start`, which may wrap around the axis, overlaps `extent` pixels from `first`.
export function overlaps(start, length, first, extent, axis) {
  const ahead = (((first - start) % axis) + axis) % axis;
  return ahead < length || ahead + extent > axis;
}

const meets = ([start, length], runs, axis) => runs.some(([first, extent]) => overlaps(start, length, first, extent, axis));

// T_p: 1 for every mutant that keeps a pixel which the sticker can change from this place.
export function touched(geometry, reach, { top, left }) {
  const [down, across] = [reach.down.runs(top), reach.across.runs(left)];
  if (geometry.masks) return pairsTouched(geometry.masks.regions, down, across);
  const isTouched = new Uint8Array(geometry.mutants);
  let mutant = 0;
  for (const part of geometry.parts) {
    const rows = part.rows.map((segment) => meets(segment, down, geometry.height));
    const columns = part.columns.map((segment) => meets(segment, across, geometry.width));
    for (const row of rows) {
      for (const column of columns) isTouched[mutant++] = row && column ? 1 : 0;
    }
  }
  return isTouched;
}

// Ballots as the page uses them: labels and units of mutant i are at i * spread … i * spread + spread - 1.
export function makeElection(votes, about, view) {
  const soft = votes.labels !== null;
  const unknown = new Uint8Array(votes.ballots.length);
  for (const mutant of votes.unknown) unknown[mutant] = 1;
  return {
    classes: about.num_classes,
    mutants: votes.ballots.length,
    hard: votes.ballots,
    spread: soft ? votes.labels[0].length : 1,
    labels: soft ? votes.labels.flat() : votes.ballots,
    units: soft ? votes.units.flat() : null,
    cap: votes.cap,
    unknown,
    tau: view.tau,
    ties: about.ties,
  };
}

// α[y]: units for each label from mutants that are neither touched nor unknown, and the number of these mutants.
export function cleanVotes(election, isTouched) {
  const clean = new Float64Array(election.classes);
  const { spread, labels, units, unknown } = election;
  let mutants = 0;
  for (let i = 0; i < election.mutants; i++) {
    if (unknown[i] || (isTouched && isTouched[i])) continue;
    mutants += 1;
    for (let s = i * spread; s < (i + 1) * spread; s++) clean[labels[s]] += units ? units[s] : 1;
  }
  return { clean, mutants };
}

// The score a rival must reach to pass the label, and 1 more where it loses ties.
const passingScore = (clean, mutants, label, tau) => Math.max(clean[label] - tau * mutants, 0) - tau * mutants;
const tieUnit = (election, rival, label) => (election.ties === "lowest" && rival > label ? 1 : 0);

// The units that each label lacks to pass `label`.
function gaps(election, clean, mutants, label) {
  const score = passingScore(clean, mutants, label, election.tau);
  const gap = new Float64Array(election.classes);
  for (let y = 0; y < election.classes; y++) {
    gap[y] = Math.max(0, score - clean[y] + tieUnit(election, y, label));
  }
  return gap;
}

// CostCert: rivals are lifted cheapest first. The rest of the budget goes to the rival that would be next.
export function attack(election, isTouched, label) {
  const { clean, mutants } = cleanVotes(election, isTouched);
  const gap = gaps(election, clean, mutants, label);
  const budget = election.cap * (election.mutants - mutants);
  const rivals = [];
  for (let y = 0; y < election.classes; y++) if (y !== label) rivals.push(y);
  rivals.sort((a, b) => gap[a] - gap[b] || a - b);
  let left = budget;
  let lifted = 0;
  while (lifted < rivals.length && gap[rivals[lifted]] <= left) left -= gap[rivals[lifted++]];
  const given = new Map();
  for (const y of rivals.slice(0, lifted)) if (gap[y] > 0) given.set(y, gap[y]);
  const next = lifted < rivals.length ? rivals[lifted] : null;
  const receiver = next === null ? rivals[0] : next;
  if (left > 0 && receiver !== undefined) given.set(receiver, (given.get(receiver) || 0) + left);
  const scores = clean.slice();
  for (const [y, units] of given) scores[y] += units;
  return {
    clean,
    scores,
    given,
    budget,
    left,
    next,
    nextGap: next === null ? 0 : gap[next],
    lifted: rivals.slice(0, lifted),
    passingScore: Math.max(0, passingScore(clean, mutants, label, election.tau)),
    position: lifted + 1,
  };
}

// The label that gets most units of each rewritten ballot, or -1 for ballots that are not rewritten.
export function rewrittenLabels(election, isTouched, { given }) {
  const labels = new Int32Array(election.mutants).fill(-1);
  const shares = [...given];
  let at = 0;
  let left = shares.length ? shares[0][1] : 0;
  for (let i = 0; i < election.mutants; i++) {
    if (!isTouched[i] && !election.unknown[i]) continue;
    let free = election.cap;
    let most = 0;
    while (free > 0 && at < shares.length) {
      const units = Math.min(free, left);
      if (units > most) [most, labels[i]] = [units, shares[at][0]];
      free -= units;
      left -= units;
      if (left === 0 && ++at < shares.length) left = shares[at][1];
    }
  }
  return labels;
}

// PG♠/CBN: each rival separately, with the entire budget.
export function pairwisePosition(election, isTouched, label, extra = 0) {
  const { clean, mutants } = cleanVotes(election, isTouched);
  const gap = gaps(election, clean, mutants, label);
  const budget = election.cap * (election.mutants - mutants) + extra;
  let passing = 0;
  for (let y = 0; y < election.classes; y++) passing += y !== label && gap[y] <= budget;
  return passing + 1;
}

// One place for every distinct T_p of a sticker.
export function distinctPlaces(geometry, reach) {
  const { masks } = geometry;
  const hits = (kind, axis) => (runs) =>
    geometry.parts.map((part) => part[kind].map((segment) => +meets(segment, runs, axis)).join("")).join("|");
  const tops = distinctStarts(reach.down, masks ? heldBy(masks.regions, 0) : hits("rows", geometry.height));
  const lefts = distinctStarts(reach.across, masks ? heldBy(masks.regions, 1) : hits("columns", geometry.width));
  return { tops, lefts, count: tops.length * lefts.length };
}

// The first start of every distinct key; `keyOf` is computed once for starts with equal runs.
function distinctStarts({ runs, range: [low, high] }, keyOf) {
  const seen = new Map();
  const keys = new Map();
  for (let at = low; at <= high; at++) {
    const found = runs(at);
    const text = found.join(";");
    if (!keys.has(text)) keys.set(text, keyOf(found));
    const key = keys.get(text);
    if (!seen.has(key)) seen.set(key, at);
  }
  return [...seen.values()];
}

function* eachPlace(geometry, reach, { tops, lefts }) {
  for (const top of tops) {
    for (const left of lefts) yield { place: { top, left }, isTouched: touched(geometry, reach, { top, left }) };
  }
}

// The defenders that leave out votes before they rank labels.
export const MASKING = ["patchguard", "costcert-masks", "double-masking"];

// The windows that masking defenders mask, as lists of mutants: the largest sets that the patch touches.
export function maskWindows(geometry, reach, places) {
  const windows = [];
  for (const { isTouched } of eachPlace(geometry, reach, places)) {
    const mutants = [];
    for (let i = 0; i < isTouched.length; i++) if (isTouched[i]) mutants.push(i);
    windows.push(mutants);
  }
  const sets = windows.map((mutants) => new Set(mutants));
  const inside = (one, other) => other.size > one.length && one.every((i) => other.has(i));
  return windows.filter((mutants) => !sets.some((other) => inside(mutants, other)));
}

// The most clean units for each label within one window.
function bestWindowVotes(election, isTouched, windows) {
  const { classes, spread, labels, units, unknown } = election;
  const best = new Float64Array(classes);
  const count = new Float64Array(classes);
  for (const mutants of windows) {
    for (const i of mutants) {
      if (isTouched[i] || unknown[i]) continue;
      for (let s = i * spread; s < (i + 1) * spread; s++) {
        const y = labels[s];
        count[y] += units ? units[s] : 1;
        if (count[y] > best[y]) best[y] = count[y];
      }
    }
    for (const i of mutants) {
      if (!unknown[i]) for (let s = i * spread; s < (i + 1) * spread; s++) count[labels[s]] = 0;
    }
  }
  return best;
}

// The largest window that contains T_p: an attacker who has all of it can do whatever T_p allows, and masking it
// removes everything that was written in T_p.
function enclosingWindow(isTouched, windows) {
  let size = 0;
  for (let i = 0; i < isTouched.length; i++) size += isTouched[i];
  let best = null;
  for (const mutants of windows) {
    if (mutants.length <= (best ? best.length : size)) continue;
    let inside = 0;
    for (const i of mutants) inside += isTouched[i];
    if (inside === size) best = mutants;
  }
  if (best === null) return isTouched;
  const larger = new Uint8Array(isTouched.length);
  for (const i of best) larger[i] = 1;
  return larger;
}

// PatchGuard, and with `shareBudget` CostCert over its masks, which has a price for hard ballots only.
export function maskedPosition(election, place, label, windows, shareBudget) {
  const isTouched = enclosingWindow(place, windows);
  const { clean, mutants } = cleanVotes(election, isTouched);
  const masked = bestWindowVotes(election, isTouched, windows);
  const shift = election.tau * mutants;
  const lowest = Math.max(0, clean[label] - masked[label] - shift) - shift;
  let size = 0;
  for (let i = 0; i < election.mutants; i++) size += isTouched[i];
  const unknown = election.mutants - mutants - size;
  const costs = [];
  for (let y = 0; y < election.classes; y++) {
    const score = lowest + tieUnit(election, y, label);
    if (y !== label && clean[y] + election.cap * unknown >= score) costs.push(Math.max(0, score - clean[y] + masked[y]));
  }
  if (!shareBudget || election.units) return costs.length + 1;
  costs.sort((a, b) => a - b);
  let budget = size + unknown;
  let lifted = 0;
  while (lifted < costs.length && costs[lifted] <= budget) budget -= costs[lifted++];
  return lifted + 1;
}

// Double masking: the votes of two windows are left out, that of the sticker and any other. A rival counts that leads in one such
// pair by what the label is sure to lead by in all of them.
export function doubleMaskedPosition(election, place, label, windows) {
  const isTouched = enclosingWindow(place, windows);
  const size = isTouched.reduce((sum, each) => sum + each, 0);
  const most = new Float64Array(election.classes).fill(-Infinity);
  let sure = Infinity;
  for (const window of windows) {
    const hidden = isTouched.slice();
    for (const i of window) hidden[i] = 1;
    let unknown = 0;
    for (let i = 0; i < election.mutants; i++) if (election.unknown[i] && !hidden[i]) unknown++;
    const { clean, mutants } = cleanVotes(election, hidden);
    const off = 2 * election.tau * mutants + election.cap * unknown;
    let best = 0, second = 0, leader = -1;
    for (let y = 0; y < election.classes; y++) {
      if (clean[y] > best) [second, best, leader] = [best, clean[y], y];
      else if (clean[y] > second) second = clean[y];
    }
    const lead = (y) => clean[y] - (y === leader ? second : best);
    sure = Math.min(sure, lead(label) - off);
    const itself = window.length === size && window.every((i) => isTouched[i]);
    if (itself && windows.length > 1) continue;
    for (let y = 0; y < election.classes; y++) most[y] = Math.max(most[y], lead(y) + off);
  }
  let position = 1;
  for (let y = 0; y < election.classes; y++) position += y !== label && most[y] >= sure + tieUnit(election, y, label);
  return position;
}

// The worst position of the label with the sticker at this place, per defender; null where it is not computed here.
export function positions(election, isTouched, label, { budget, windows, defenders, masks }) {
  const found = {};
  for (const name of defenders) {
    if (name === "costcert") found[name] = attack(election, isTouched, label).position;
    else if (name === "cbn") found[name] = pairwisePosition(election, isTouched, label);
    else if (name === "drs") found[name] = pairwisePosition(election, null, label, 2 * election.cap * budget);
    else if (windows && name === "patchguard") found[name] = maskedPosition(election, isTouched, label, windows, false);
    else if (windows && name === "costcert-masks") found[name] = maskedPosition(election, isTouched, label, windows, true);
    else if (windows && name === "double-masking") found[name] = doubleMaskedPosition(election, isTouched, label, windows);
    else if (masks && name === "patchcleanser") found[name] = standing(election, masks.regions.length, isTouched, label).position;
    else found[name] = null;
  }
  return found;
}

// The place where CostCert's attacker lifts the most rivals, and comes nearest to lifting one more; with `rows` the place where
// most rivals can reach the label in votes of masks.
export function worstPlace(election, geometry, reach, label, places, rows = false) {
  let best = null;
  for (const { place, isTouched } of eachPlace(geometry, reach, places)) {
    let found;
    if (rows) found = standing(election, geometry.masks.regions.length, isTouched, label);
    else {
      const { position, next, left, nextGap } = attack(election, isTouched, label);
      found = { position, margin: next === null ? 0 : left - nextGap };
    }
    const { position, margin } = found;
    if (best === null || position > best.position || (position === best.position && margin > best.margin)) {
      best = { place, position, margin };
    }
  }
  return best;
}
