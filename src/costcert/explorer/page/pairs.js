// Votes of masks: which mutants hide a sticker, the rows that are safe, and what labels can score; the formulas of
// costcert/defenders/patchcleanser.py, which tests/explorer/test_mask_pages.py compares with the library.

const within = (start, length, [first, extent]) => first >= start && first + extent <= start + length;

// Whether a segment holds all of these runs of pixels.
const holds = ([start, length], runs) => runs.every((run) => within(start, length, run));

// Whether two segments together hold all of them.
function together([a, m], [b, n], runs) {
  const [low, lowEnd, high, highEnd] = a <= b ? [a, a + m, b, b + n] : [b, b + n, a, a + m];
  return runs.every(
    ([first, extent]) =>
      within(a, m, [first, extent]) ||
      within(b, n, [first, extent]) ||
      (low <= first && high <= lowEnd && first + extent <= highEnd)
  );
}

// The pairs (i, j), i <= j, in the order of the mutants.
export function eachPair(count, visit) {
  let mutant = 0;
  for (let i = 0; i < count; i++) for (let j = i; j < count; j++) visit(i, j, mutant++);
}

// 1 for every mutant whose masks leave visible a pixel in these rows and columns: two rectangles hide them all only if one does alone,
// or if both span them along one axis and hold them together along the other.
export function pairsTouched(regions, down, across) {
  const isTouched = new Uint8Array((regions.length * (regions.length + 1)) / 2);
  if (!down.length || !across.length) return isTouched;
  const rows = regions.map(([segment]) => holds(segment, down));
  const columns = regions.map(([, segment]) => holds(segment, across));
  const held = (i, j) =>
    (rows[i] && columns[i]) ||
    (rows[j] && columns[j]) ||
    (rows[i] && rows[j] && together(regions[i][1], regions[j][1], across)) ||
    (columns[i] && columns[j] && together(regions[i][0], regions[j][0], down));
  eachPair(regions.length, (i, j, mutant) => (isTouched[mutant] = held(i, j) ? 0 : 1));
  return isTouched;
}

// A key for each distinct way in which masks and pairs of them hold runs along an axis. No runs are a way of their own: nothing
// along the other axis is touched then.
export function heldBy(regions, kind) {
  const segments = [...new Map(regions.map((region) => [region[kind].join(), region[kind]])).values()];
  return (runs) =>
    [
      runs.length ? "some" : "none",
      segments.map((segment) => +holds(segment, runs)).join(""),
      ...segments.map((a) => segments.map((b) => +together(a, b, runs)).join("")),
    ].join("|");
}

// For each label the best row, a row being worth the least that its counted mutants give: with `isLost` those are the others.
function bestRows(election, count, isLost) {
  const { classes, spread, labels, units, cap } = election;
  const rows = Array.from({ length: count }, () => []);
  eachPair(count, (i, j, mutant) => {
    if (isLost[mutant]) return;
    rows[i].push(mutant);
    if (i !== j) rows[j].push(mutant);
  });
  const best = new Float64Array(classes);
  const bestRow = new Int32Array(classes).fill(-1);
  const amount = new Float64Array(classes);
  const least = Array.from({ length: count }, () => new Map());
  rows.forEach((mutants, row) => {
    let found = null;
    for (const mutant of mutants) {
      const named = new Map();
      for (let s = mutant * spread; s < (mutant + 1) * spread; s++) {
        named.set(labels[s], (named.get(labels[s]) || 0) + (units ? units[s] : 1));
      }
      if (found === null) found = named;
      else {
        for (const [label, had] of found) {
          const has = named.get(label) || 0;
          if (has === 0) found.delete(label);
          else if (has < had) found.set(label, has);
        }
      }
      if (found.size === 0) break;
    }
    least[row] = found;
    // A row without a counted mutant can give everything to every label.
    if (found === null) {
      for (let y = 0; y < classes; y++) amount[y] = cap;
    } else {
      amount.fill(0);
      for (const [label, has] of found) amount[label] = has;
    }
    for (let y = 0; y < classes; y++) {
      if (bestRow[y] < 0 || amount[y] > best[y]) [best[y], bestRow[y]] = [amount[y], row];
    }
  });
  return { best, bestRow, least };
}

// What stands with a sticker that touches these mutants, whatever it shows.
export function standing(election, count, isTouched, label) {
  const { classes, tau, cap, unknown } = election;
  const nothing = new Uint8Array(election.mutants);
  const isLost = isTouched.map((is, mutant) => is || unknown[mutant]);
  const safe = new Uint8Array(count).fill(1);
  const covers = new Uint8Array(count).fill(1);
  eachPair(count, (i, j, mutant) => {
    if (isTouched[mutant]) covers[i] = covers[j] = 0;
    if (isLost[mutant]) safe[i] = safe[j] = 0;
  });
  const clean = bestRows(election, count, unknown.some(Boolean) ? unknown : nothing);
  const reach = bestRows(election, count, isLost);
  let least = 0;
  let leastRow = -1;
  for (let i = 0; i < count; i++) {
    const own = safe[i] ? reach.least[i].get(label) || 0 : -1;
    if (own >= 0 && (leastRow < 0 || own > least)) [least, leastRow] = [own, i];
  }
  least = Math.max(0, least - tau);
  const most = reach.best.map((units) => Math.min(cap, units + tau));
  const rivals = [];
  for (let y = 0; y < classes; y++) if (y !== label) rivals.push(y);
  rivals.sort((a, b) => most[b] - most[a] || clean.best[b] - clean.best[a] || a - b);
  const passing = rivals.filter((y) => most[y] >= least);
  const next = rivals[passing.length];
  return {
    isLost,
    covers,
    least,
    leastRow,
    most,
    mostRow: reach.bestRow,
    scores: clean.best,
    stands: clean.least.map((row) => row !== null && (row.get(label) || 0) > 0),
    rivals,
    passing,
    position: passing.length + 1,
    margin: next === undefined ? 0 : most[next] - least,
  };
}
