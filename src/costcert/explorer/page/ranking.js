// The attack as text and bars: how the budget is spent, and the ranking after it.

import { MASKING } from "./arithmetic.js";
import { isPromise, ordinal, stickerText, topK, votesText } from "./numbers.js";

const $ = (id) => document.getElementById(id);
const MAX_BARS = 12;

export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const asVotes = (units, cap) => votesText(units / cap);

// The ranking after the attack: labels that pass, the label itself, and the others.
function ranking({ lifted, scores }, label, classes) {
  const passed = new Set(lifted);
  const byScore = (a, b) => scores[b] - scores[a] || a - b;
  const others = [];
  for (let y = 0; y < classes; y++) if (y !== label && !passed.has(y)) others.push(y);
  return [...[...passed].sort(byScore), label, ...others.sort(byScore)];
}

export function drawBars(state, result, colour) {
  const { cap, classes } = state.election;
  const order = ranking(result, state.label, classes);
  const position = result.position;
  // A long list is cut, but always shows the label to keep.
  let shown = order.map((label, i) => ({ label, place: i + 1 })).slice(0, MAX_BARS);
  let cut = 0;
  if (position > MAX_BARS) {
    cut = position - 1 - (MAX_BARS - 2);
    shown = [...shown.slice(0, MAX_BARS - 2), { label: state.label, place: position }];
  }
  const longest = Math.max(result.passingScore, ...shown.map(({ label }) => result.scores[label])) || 1;
  const rows = [];
  for (const { label, place } of shown) {
    if (cut && label === state.label) rows.push(element("li", { className: "gap", textContent: `… ${cut} more …` }));
    const added = result.given.get(label) || 0;
    const clean = element("div", { className: "clean" });
    clean.style.width = `${(100 * result.clean[label]) / longest}%`;
    clean.style.background = colour(label);
    const gain = element("div", { className: "added" });
    gain.style.width = `${(100 * added) / longest}%`;
    gain.hidden = added === 0;
    const mark = element("div", { className: "mark" });
    mark.style.left = `${(100 * result.passingScore) / longest}%`;
    const votes = asVotes(result.clean[label], cap) + (added ? ` + ${asVotes(added, cap)}` : "");
    const track = element("div", { className: "track" }, clean, gain, element("span", { className: "count", textContent: votes }), mark);
    const name = element("span", { className: "name", textContent: state.name(label), title: state.name(label) });
    const row = element("li", { className: label === state.label ? "true" : "" });
    row.append(element("span", { className: "place", textContent: `${place}.` }), name, track);
    row.dataset.label = label;
    rows.push(row);
    if (place === state.k) {
      rows.push(element("li", { className: "end", textContent: `the ${topK(state.k)} ${state.k === 1 ? "" : "list "}ends here` }));
    }
  }
  $("bars").replaceChildren(...rows);
}

export function drawBudget(state, result, colour) {
  const { cap } = state.election;
  const total = asVotes(result.budget, cap);
  $("budget-title").textContent = "How the attacker spends";
  $("budget-bar").hidden = false;
  $("budget").textContent = result.budget === cap ? "its 1 vote" : `its ${total} votes`;
  const spent = [];
  const pieces = [];
  for (const [label, units] of result.given) {
    const isLifted = label !== result.next;
    const piece = element("div", { title: `${asVotes(units, cap)} to ${state.name(label)}` });
    piece.style.flex = `${units} 0 0`;
    piece.style.background = isLifted ? colour(label) : "transparent";
    pieces.push(piece);
    if (isLifted) spent.push(`${asVotes(units, cap)} to ${state.name(label)}`);
  }
  const free = result.lifted.filter((label) => !result.given.has(label)).length;
  const sentences = [];
  if (free) sentences.push(`${free === 1 ? "One rival is" : `${free} rivals are`} level or ahead without the attacker’s votes.`);
  if (spent.length) {
    const first = spent.slice(0, 4).join(", ");
    sentences.push(`Cheapest first: ${first}${spent.length > 4 ? ` and ${spent.length - 4} more` : ""}.`);
  }
  if (result.next !== null) {
    const name = state.name(result.next);
    const needs = asVotes(result.nextGap, cap);
    sentences.push(
      result.left > 0
        ? `${asVotes(result.left, cap)} left over: not enough for ${name}, which needs ${needs}.`
        : result.budget > 0
          ? `Nothing is left over; ${name} needs ${needs} more.`
          : ""
    );
  }
  $("budget-bar").replaceChildren(...pieces);
  const text = sentences.filter(Boolean).join(" ");
  $("budget-bar").setAttribute("aria-label", text);
  $("spent").textContent = text;
}

export function drawVerdict(state, result, here, anywhere) {
  const { defender, k } = state;
  const { title, meaning } = state.about.defenders[defender];
  const classes = state.about.num_classes;
  const name = `“${state.name(state.label)}”`;
  const held = result.held || `The sticker holds ${result.budget / state.election.cap} of ${state.election.mutants} votes`;
  const safe = (position) => position <= k && isPromise(position, classes);
  const line = $("here");
  const place = here[defender];
  line.replaceChildren();
  if (place === null || place === undefined) {
    line.append(`${held} here. `);
    line.append(`${title} is computed only for all places together, not while dragging.`);
  } else {
    line.append(element("span", { className: safe(place) ? "yes" : "no", textContent: safe(place) ? "✓ Safe here. " : "✗ Not safe here. " }));
    const end = !isPromise(place, classes)
      ? "can end last"
      : place === 1
        ? "ends first under any attack"
        : `ends ${ordinal(place)} at worst${safe(place) ? ` and stays in the ${topK(k)}` : `, out of the ${topK(k)}`}`;
    line.append(`${held}; ${name} ${end}.`);
  }
  const far = $("anywhere");
  far.replaceChildren();
  const minK = anywhere && anywhere[defender] && anywhere[defender].min_k;
  // Only the label that the data give needs no further words.
  const whose = { true: "", predicted: ` for ${name}, the predicted label`, chosen: ` for the label you chose: ${name}` }[state.labelOrigin];
  if (!minK) {
    far.append("Computing all other places …");
  } else if (!isPromise(minK, classes)) {
    far.append(
      element("b", { className: "no", textContent: `✗ Nothing is promised${whose}. ` }),
      `Against such a sticker ${title} cannot exclude that ${name} ends last, ${ordinal(classes)} of ${classes}.`
    );
  } else if (safe(minK)) {
    far.append(
      element("b", { className: "yes", textContent: `✓ Certified${whose}. ` }),
      `${title} proves that no ${stickerText(state)}, anywhere, with any pixels, pushes ${name} out of the ${topK(k)} (min-k ${minK}).`
    );
  } else {
    far.append(
      element("b", { className: "no", textContent: `✗ No certificate${whose}. ` }),
      defender === "costcert" && state.about.ties
        ? `At its worst place such a sticker could push ${name} down to place ${minK} (min-k ${minK}).`
        : `${title} proves only the top ${minK} against such a sticker (min-k ${minK}).`
    );
  }
  $("label-note").textContent = labelNote(state, name);
  $("label-note").hidden = state.labelOrigin === "true";
  $("explained").textContent = meaning ? `${title}: ${meaning}` : "";
  $("bars-caption").textContent =
    result.captioned ||
    "Solid: votes the sticker does not touch. Hatched: votes the attacker gives. A label that reaches the dashed line passes." +
      (MASKING.includes(defender) ? ` ${title} ranks by other scores: it leaves out votes that a sticker could have written.` : "");
}

// Where the label comes from, unless it is the true one.
function labelNote(state, name) {
  if (state.labelOrigin === "predicted") {
    return `${name} is what the model predicts. costcert does not know what your picture shows: if it is something else, choose that label.`;
  }
  if (state.upload) return `You chose ${name}. costcert does not know whether your picture shows it.`;
  return `You chose ${name}; the true label of this image is “${state.name(state.trueLabel)}”.`;
}

export function drawDefenders(state, here, anywhere) {
  const { k, view } = state;
  const mark = (position) => {
    if (position === null || position === undefined) return element("td", { textContent: "–" });
    const safe = position <= k && isPromise(position, state.about.num_classes);
    const cell = element("td", { className: safe ? "yes" : "no" });
    cell.textContent = isPromise(position, state.about.num_classes) ? `${safe ? "✓" : "✗"} top ${position}` : "✗ no promise";
    return cell;
  };
  const rows = state.about.views[view].defenders.map((name) => {
    const found = anywhere && anywhere[name];
    const row = element("tr", { className: name === state.defender ? "chosen" : "" });
    row.dataset.defender = name;
    row.append(
      element("th", { scope: "row", textContent: state.about.defenders[name].title, title: state.about.defenders[name].meaning }),
      element("td", { textContent: found ? found.rank : "…" }),
      mark(here[name]),
      found ? mark(found.min_k) : element("td", { textContent: "…" })
    );
    return row;
  });
  $("defenders").tBodies[0].replaceChildren(...rows);
}
