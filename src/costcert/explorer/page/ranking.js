// The attack in words and bars: how the budget is spent, and where everybody ends.

const $ = (id) => document.getElementById(id);
const MOST = 12;

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export const amount = (units, cap) => {
  if (cap === 1) return String(units);
  const votes = units / cap;
  return votes.toFixed(Math.abs(votes) < 9.95 ? 2 : 1);
};
export const ordinal = (n) => {
  const ending = { 1: "st", 2: "nd", 3: "rd" }[n % 10];
  return `${n}${ending && Math.floor((n % 100) / 10) !== 1 ? ending : "th"}`;
};
export const top = (k) => (k === 1 ? "first place" : `top ${k}`);

// Labels as they end: all that pass, the label itself, and the others.
export function ending(found, label, classes) {
  const passed = new Set(found.lifted);
  const byScore = (a, b) => found.scores[b] - found.scores[a] || a - b;
  const others = [];
  for (let y = 0; y < classes; y++) if (y !== label && !passed.has(y)) others.push(y);
  return [...[...passed].sort(byScore), label, ...others.sort(byScore)];
}

export function drawBars(state, found, colour) {
  const { cap, classes } = state.election;
  const order = ending(found, state.label, classes);
  const position = found.position;
  // A long list is cut, but never the label it is about.
  let shown = order.map((label, at) => ({ label, place: at + 1 })).slice(0, MOST);
  let cut = 0;
  if (position > MOST) {
    cut = position - 1 - (MOST - 2);
    shown = [...shown.slice(0, MOST - 2), { label: state.label, place: position }];
  }
  const most = Math.max(found.level, ...shown.map(({ label }) => found.scores[label])) || 1;
  const rows = [];
  for (const { label, place } of shown) {
    if (cut && label === state.label) rows.push(element("li", { className: "gap", textContent: `… ${cut} more …` }));
    const added = found.given.get(label) || 0;
    const clean = element("div", { className: "clean" });
    clean.style.width = `${(100 * found.clean[label]) / most}%`;
    clean.style.background = colour(label);
    const gift = element("div", { className: "added" });
    gift.style.width = `${(100 * added) / most}%`;
    gift.hidden = added === 0;
    const mark = element("div", { className: "mark" });
    mark.style.left = `${(100 * found.level) / most}%`;
    const votes = amount(found.clean[label], cap) + (added ? ` + ${amount(added, cap)}` : "");
    const track = element("div", { className: "track" }, clean, gift, element("span", { className: "count", textContent: votes }), mark);
    const name = element("span", { className: "name", textContent: state.name(label), title: state.name(label) });
    const row = element("li", { className: label === state.label ? "true" : "" });
    row.append(element("span", { className: "place", textContent: `${place}.` }), name, track);
    row.dataset.label = label;
    rows.push(row);
    if (place === state.k) {
      rows.push(element("li", { className: "end", textContent: `the ${top(state.k)} ${state.k === 1 ? "" : "list "}ends here` }));
    }
  }
  $("bars").replaceChildren(...rows);
}

export function drawPurse(state, found, colour) {
  const { cap } = state.election;
  const total = amount(found.budget, cap);
  $("budget").textContent = found.budget === cap ? "his 1 vote" : `his ${total} votes`;
  const said = [];
  const pieces = [];
  for (const [label, units] of found.given) {
    const enough = !(label === found.next);
    const piece = element("div", { title: `${amount(units, cap)} to ${state.name(label)}` });
    piece.style.flex = `${units} 0 0`;
    piece.style.background = enough ? colour(label) : "transparent";
    pieces.push(piece);
    if (enough) said.push(`${amount(units, cap)} to ${state.name(label)}`);
  }
  const free = found.lifted.filter((label) => !found.given.has(label)).length;
  const words = [];
  if (free) words.push(`${free === 1 ? "One rival is" : `${free} rivals are`} level or ahead without his help.`);
  if (said.length) {
    const first = said.slice(0, 4).join(", ");
    words.push(`Cheapest first: ${first}${said.length > 4 ? ` and ${said.length - 4} more` : ""}.`);
  }
  if (found.next !== null) {
    const name = state.name(found.next);
    const needs = amount(found.nextLacks, cap);
    words.push(
      found.left > 0
        ? `${amount(found.left, cap)} left over: not enough for ${name}, who would need ${needs}.`
        : found.budget > 0
          ? `Nothing is left over; ${name} would need ${needs} more.`
          : ""
    );
  }
  $("purse").replaceChildren(...pieces);
  const text = words.filter(Boolean).join(" ");
  $("purse").setAttribute("aria-label", text);
  $("spent").textContent = text;
}

const EXPLAINED = {
  costcert: "CostCert lets the attacker spend each vote once, on the cheapest rivals: exactly what he can do, no more.",
  "costcert-masks": "CostCert over masks predicts as PatchGuard does, and lets the attacker spend each vote once.",
  patchguard: "PatchGuard takes from every label its best window of votes, in the prediction too: so its ranking is not the one above.",
  cbn: "PG♠/CBN looks at each rival by itself, as if the attacker could spend all his votes once per rival.",
  drs: "DRS compares all votes with twice the largest number a sticker can touch; where it lies does not matter.",
};

export function drawVerdict(state, found, here, anywhere) {
  const { defender, k } = state;
  const title = state.about.defenders[defender].title;
  const name = `“${state.name(state.label)}”`;
  const taken = found.budget / state.election.cap;
  const safe = (position) => position <= k;
  const line = $("here");
  const place = here[defender];
  line.replaceChildren();
  if (place === null || place === undefined) {
    line.append(`The sticker holds ${taken} of ${state.election.mutants} votes here. `);
    line.append(`${title} is only judged for all places together: they are too many to try while dragging.`);
  } else {
    line.append(element("span", { className: safe(place) ? "yes" : "no", textContent: safe(place) ? "✓ Safe here. " : "✗ Not safe here. " }));
    line.append(
      `The sticker holds ${taken} of ${state.election.mutants} votes; ${name} ends ` +
        (place === 1 ? "first whatever he does." : `${ordinal(place)} at worst${safe(place) ? ` and stays in the ${top(k)}` : `, out of the ${top(k)}`}.`)
    );
  }
  const far = $("anywhere");
  far.replaceChildren();
  const minK = anywhere && anywhere[defender] && anywhere[defender].min_k;
  if (!minK) {
    far.append("Working out all other places …");
  } else if (safe(minK)) {
    far.append(
      element("b", { className: "yes", textContent: "✓ Certified. " }),
      `${title} proves that no ${state.width} × ${state.height} pixel sticker, anywhere, with any pixels, pushes ${name} out of the ${top(k)} (min-k ${minK}).`
    );
  } else {
    far.append(
      element("b", { className: "no", textContent: "✗ No certificate. " }),
      defender === "costcert" && state.about.ties
        ? `At its worst place such a sticker could push ${name} down to place ${minK} (min-k ${minK}).`
        : `${title} promises no more than the top ${minK} against such a sticker (min-k ${minK}).`
    );
  }
  $("explained").textContent = EXPLAINED[defender] || "";
  $("bars-caption").textContent =
    "Solid: votes the sticker does not touch. Hatched: votes the attacker gives. A label that reaches the dashed line passes.";
}

export function drawDefenders(state, here, anywhere) {
  const { k, view } = state;
  const mark = (position) => {
    if (position === null || position === undefined) return element("td", { textContent: "–" });
    const safe = position <= k;
    const cell = element("td", { className: safe ? "yes" : "no" });
    cell.textContent = `${safe ? "✓" : "✗"} top ${position}`;
    return cell;
  };
  const rows = state.about.views[view].defenders.map((name) => {
    const found = anywhere && anywhere[name];
    const row = element("tr", { className: name === state.defender ? "chosen" : "" });
    row.dataset.defender = name;
    row.append(
      element("th", { scope: "row", textContent: state.about.defenders[name].title }),
      element("td", { textContent: found ? found.rank : "…" }),
      mark(here[name]),
      found ? mark(found.min_k) : element("td", { textContent: "…" })
    );
    return row;
  });
  $("defenders").tBodies[0].replaceChildren(...rows);
}
