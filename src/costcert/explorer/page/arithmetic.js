// What a sticker at one place can do, in whole numbers: the same formulas as costcert/defenders, which
// tests/explorer/test_explorer.py holds against each other. Runs on every movement, so nothing here asks the server.

// Does a segment of `length` pixels from `start` on, going round the axis, meet `extent` pixels from `first` on?
export function meets(start, length, first, extent, axis) {
  const ahead = (((first - start) % axis) + axis) % axis;
  return ahead < length || ahead + extent > axis;
}

// T_p: 1 for every mutant whose kept region the patch touches.
export function touched(geometry, patch) {
  const held = new Uint8Array(geometry.mutants);
  let at = 0;
  for (const part of geometry.parts) {
    const rows = part.rows.map(([s, n]) => meets(s, n, patch.top, patch.height, geometry.height));
    const columns = part.columns.map(([s, n]) => meets(s, n, patch.left, patch.width, geometry.width));
    for (const row of rows) {
      for (const column of columns) held[at++] = row && column ? 1 : 0;
    }
  }
  return held;
}

// Ballots as the page uses them: labels and units of mutant i are at i * spread … i * spread + spread - 1.
export function asElection(votes, about, view) {
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

// α[y]: units for each label from mutants that are neither held nor unknown, and how many those are.
export function cleanVotes(election, held) {
  const clean = new Float64Array(election.classes);
  const { spread, labels, units, unknown } = election;
  let mutants = 0;
  for (let i = 0; i < election.mutants; i++) {
    if (unknown[i] || (held && held[i])) continue;
    mutants += 1;
    for (let s = i * spread; s < (i + 1) * spread; s++) clean[labels[s]] += units ? units[s] : 1;
  }
  return { clean, mutants };
}

// What a rival must reach to pass the label, and one more where it loses ties.
const level = (clean, mutants, label, tau) => Math.max(clean[label] - tau * mutants, 0) - tau * mutants;
const handicap = (election, rival, label) => (election.ties === "lowest" && rival > label ? 1 : 0);

function gaps(election, clean, mutants, label) {
  const threshold = level(clean, mutants, label, election.tau);
  const lacking = new Float64Array(election.classes);
  for (let y = 0; y < election.classes; y++) {
    lacking[y] = Math.max(0, threshold - clean[y] + handicap(election, y, label));
  }
  return lacking;
}

// CostCert: rivals are lifted cheapest first. What is left over goes to the one who would be next.
export function attack(election, held, label) {
  const { clean, mutants } = cleanVotes(election, held);
  const lacking = gaps(election, clean, mutants, label);
  const budget = election.cap * (election.mutants - mutants);
  const rivals = [];
  for (let y = 0; y < election.classes; y++) if (y !== label) rivals.push(y);
  rivals.sort((a, b) => lacking[a] - lacking[b] || a - b);
  let left = budget;
  let lifted = 0;
  while (lifted < rivals.length && lacking[rivals[lifted]] <= left) left -= lacking[rivals[lifted++]];
  const given = new Map();
  for (const y of rivals.slice(0, lifted)) if (lacking[y] > 0) given.set(y, lacking[y]);
  const next = lifted < rivals.length ? rivals[lifted] : null;
  const rest = next === null ? rivals[0] : next;
  if (left > 0 && rest !== undefined) given.set(rest, (given.get(rest) || 0) + left);
  const scores = clean.slice();
  for (const [y, amount] of given) scores[y] += amount;
  return {
    clean,
    scores,
    given,
    budget,
    left,
    next,
    nextLacks: next === null ? 0 : lacking[next],
    lifted: rivals.slice(0, lifted),
    level: Math.max(0, level(clean, mutants, label, election.tau)),
    position: lifted + 1,
  };
}

// The label that each touched mutant now votes for (most), or -1 where its vote is its own.
export function rewritten(election, held, found) {
  const now = new Int32Array(election.mutants).fill(-1);
  const shares = [...found.given];
  let at = 0;
  let left = shares.length ? shares[0][1] : 0;
  for (let i = 0; i < election.mutants; i++) {
    if (!held[i] && !election.unknown[i]) continue;
    let need = election.cap;
    let most = 0;
    while (need > 0 && at < shares.length) {
      const take = Math.min(need, left);
      if (take > most) [most, now[i]] = [take, shares[at][0]];
      need -= take;
      left -= take;
      if (left === 0 && ++at < shares.length) left = shares[at][1];
    }
  }
  return now;
}

// PG♠/CBN: each rival by itself, with the whole budget.
export function pairwise(election, held, label, extra = 0) {
  const { clean, mutants } = cleanVotes(election, held);
  const lacking = gaps(election, clean, mutants, label);
  const budget = election.cap * (election.mutants - mutants) + extra;
  let passing = 0;
  for (let y = 0; y < election.classes; y++) passing += y !== label && lacking[y] <= budget;
  return passing + 1;
}

// Every distinct T_p of a patch of this size, with a place for each.
export function windows(geometry, height, width) {
  const sides = (axis, extent, kind) => {
    const seen = new Map();
    for (let first = 0; first + extent <= axis; first++) {
      const hit = geometry.parts.map((part) => part[kind].map(([s, n]) => +meets(s, n, first, extent, axis)).join(""));
      const key = hit.join("|");
      if (!seen.has(key)) seen.set(key, first);
    }
    return [...seen.values()];
  };
  const tops = sides(geometry.height, height, "rows");
  const lefts = sides(geometry.width, width, "columns");
  return { tops, lefts, count: tops.length * lefts.length };
}

export function* everywhere(geometry, height, width, { tops, lefts }) {
  for (const top of tops) {
    for (const left of lefts) {
      const patch = { top, left, height, width };
      yield { patch, held: touched(geometry, patch) };
    }
  }
}

// PatchGuard's windows as lists of mutants, for `masked`.
export function listed(geometry, height, width, places) {
  const lists = [];
  for (const { held } of everywhere(geometry, height, width, places)) {
    const mutants = [];
    for (let i = 0; i < held.length; i++) if (held[i]) mutants.push(i);
    lists.push(mutants);
  }
  return lists;
}

// The most votes for each label that lie in one window and are not held.
function bestOutside(election, held, lists) {
  const best = new Int32Array(election.classes);
  const count = new Int32Array(election.classes);
  for (const mutants of lists) {
    for (const i of mutants) {
      if (held[i] || election.unknown[i]) continue;
      const y = election.hard[i];
      count[y] += 1;
      if (count[y] > best[y]) best[y] = count[y];
    }
    for (const i of mutants) count[election.hard[i]] = 0;
  }
  return best;
}

// The largest window that holds all of T_p: whoever has that can do all that T_p allows, and masking it
// takes away all that was written in T_p.
function within(held, lists) {
  let size = 0;
  for (let i = 0; i < held.length; i++) size += held[i];
  let best = null;
  for (const mutants of lists) {
    if (mutants.length <= (best ? best.length : size)) continue;
    let inside = 0;
    for (const i of mutants) inside += held[i];
    if (inside === size) best = mutants;
  }
  if (best === null) return held;
  const larger = new Uint8Array(held.length);
  for (const i of best) larger[i] = 1;
  return larger;
}

// PatchGuard, and with `priced` CostCert over its masks. Hard ballots alone.
export function masked(election, place, label, lists, priced) {
  const held = within(place, lists);
  const { clean, mutants } = cleanVotes(election, held);
  const outside = bestOutside(election, held, lists);
  const floor = clean[label] - outside[label];
  let size = 0;
  for (let i = 0; i < election.mutants; i++) size += held[i];
  const free = election.mutants - mutants - size;
  const passing = [];
  for (let y = 0; y < election.classes; y++) {
    const need = floor + handicap(election, y, label);
    if (y !== label && clean[y] + free >= need) passing.push(Math.max(0, need - clean[y] + outside[y]));
  }
  if (!priced) return passing.length + 1;
  passing.sort((a, b) => a - b);
  let budget = size + free;
  let lifted = 0;
  while (lifted < passing.length && passing[lifted] <= budget) budget -= passing[lifted++];
  return lifted + 1;
}

// The position that a defender grants the label with the sticker at this place; null where that is not told here.
export function positions(election, held, label, { budget, lists, defenders }) {
  const found = {};
  for (const name of defenders) {
    if (name === "costcert") found[name] = attack(election, held, label).position;
    else if (name === "cbn") found[name] = pairwise(election, held, label);
    else if (name === "drs") found[name] = pairwise(election, null, label, 2 * election.cap * budget);
    else if (lists && name === "patchguard") found[name] = masked(election, held, label, lists, false);
    else if (lists && name === "costcert-masks") found[name] = masked(election, held, label, lists, true);
    else found[name] = null;
  }
  return found;
}

// The place where CostCert's attacker lifts the most rivals, and comes nearest to one more.
export function worstPlace(election, geometry, height, width, label, places) {
  let best = null;
  for (const { patch, held } of everywhere(geometry, height, width, places)) {
    const found = attack(election, held, label);
    const short = found.next === null ? 0 : found.left - found.nextLacks;
    if (best === null || found.position > best.position || (found.position === best.position && short > best.short)) {
      best = { patch, position: found.position, short };
    }
  }
  return best;
}
