// The page: one state, and what is drawn again when part of it changes.

import { asElection, attack, listed, positions, rewritten, touched, windows, worstPlace } from "./arithmetic.js";
import { drawCurves } from "./curves.js";
import { drawGallery, startGallery } from "./gallery.js";
import { drawBars, drawDefenders, drawPurse, drawVerdict, element } from "./ranking.js";
import { Refused, enter, get, path, post, send } from "./service.js";
import { drawStage, drawStrips, stickerMoves, stripsCaption } from "./stage.js";

const $ = (id) => document.getElementById(id);
// Colours of Okabe and Ito for the strongest rivals, the first one first.
const RIVALS = ["#E69F00", "#009E73", "#CC79A7", "#56B4E9"];
// In the dark the label itself is light blue.
const DARK_RIVALS = ["#E69F00", "#009E73", "#CC79A7", "#F0E442"];
const isDark = matchMedia("(prefers-color-scheme: dark)");
// Cases times mutants that are tried in the browser; more is left to the service.
const BEARABLE = 4e6;

const state = {};
let coloured = new Map();
let paint = {};
let accuracies = new Map();
// What was asked last: answers to earlier questions come too late.
let asked = 0;
let opening = 0;
let promised = null;

const patchName = () =>
  state.width === state.height ? `square:${state.width}` : `rectangle:${state.height}x${state.width}`;

const colour = (label) => (label === state.label ? paint.true : coloured.get(label) || paint.other);

// Colours belong to an image, so that nothing flickers while the sticker moves.
function chooseColours() {
  if (!state.election) return;
  const style = getComputedStyle(document.documentElement);
  paint = { true: style.getPropertyValue("--true").trim(), other: style.getPropertyValue("--other").trim() };
  const { clean } = attackOnNobody();
  const rivals = [...clean.keys()].filter((label) => label !== state.label && clean[label] > 0);
  rivals.sort((a, b) => clean[b] - clean[a] || a - b);
  const palette = isDark.matches ? DARK_RIVALS : RIVALS;
  coloured = new Map(rivals.slice(0, palette.length).map((label, at) => [label, palette[at]]));
  const swatch = (label) => {
    const mark = element("i");
    mark.style.background = colour(label);
    return element("li", {}, mark, state.name(label));
  };
  const keys = [state.label, ...coloured.keys()].map(swatch);
  if (rivals.length > RIVALS.length) {
    const mark = element("i");
    mark.style.background = colour(-1);
    keys.push(element("li", {}, mark, "others"));
  }
  $("keys").replaceChildren(...keys);
}

const attackOnNobody = () => attack(state.election, new Uint8Array(state.election.mutants), state.label);

// Where this size of sticker can lie, and PatchGuard's windows, worked out once per size.
function prepareSize() {
  state.places = windows(state.geometry, state.height, state.width);
  const affordable = state.places.count * state.geometry.mutants <= BEARABLE;
  const wanted = state.about.views[state.view].defenders.some((name) => ["patchguard", "costcert-masks"].includes(name));
  state.lists = affordable && wanted ? listed(state.geometry, state.height, state.width, state.places) : null;
}

// All that follows the sticker. Returns milliseconds, which tests look at.
export function draw() {
  if (!state.election) return 0;
  const began = performance.now();
  const held = touched(state.geometry, state);
  const found = attack(state.election, held, state.label);
  const here = positions(state.election, held, state.label, {
    budget: state.table ? state.table.budget : 0,
    lists: state.lists,
    defenders: state.about.views[state.view].defenders,
  });
  if (!state.table) here.drs = null;
  drawStage(state);
  drawStrips(state, held, rewritten(state.election, held, found), colour);
  drawBars(state, found, colour);
  drawPurse(state, found, colour);
  drawVerdict(state, found, here, state.anywhere);
  drawDefenders(state, here, state.anywhere);
  return performance.now() - began;
}

let waiting = false;
function drawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

async function showTrouble(work) {
  try {
    await work();
    $("trouble").hidden = true;
  } catch (error) {
    $("trouble").textContent = error instanceof Refused ? error.message : `The service cannot be reached (${error.message}).`;
    $("trouble").hidden = false;
  }
}

// What holds for all images, and for this one at all places.
async function refreshTables() {
  forgetTables();
  const turn = asked;
  const patch = patchName();
  const view = state.view;
  const table = await get("/certificates", { patch, ballots: view });
  if (turn !== asked) return;
  state.table = table;
  await refreshAnywhere();
  if (turn !== asked) return;
  drawGallery(state, openAndShow);
  draw();
  await refreshAccuracy(patch, view, turn);
}

async function refreshAccuracy(patch, view, turn) {
  const key = (name) => `${view} ${name}`;
  const load = async (name) => {
    if (!accuracies.has(key(name))) accuracies.set(key(name), await get("/accuracy", { patch: name, ballots: view }));
  };
  await load(patch);
  if (turn !== asked) return;
  drawAccuracy();
  for (const side of state.about.sides) {
    await load(`square:${side}`);
    if (turn !== asked) return;
    drawAccuracy();
  }
}

function drawAccuracy() {
  const sides = new Map(state.about.sides.map((side) => [side, accuracies.get(`${state.view} square:${side}`)]));
  drawCurves(state, accuracies.get(`${state.view} ${patchName()}`), sides);
}

const isOwn = () => state.own !== null;

// Rank and min-k of this image: from the table, or asked for where it is about another label or picture.
async function refreshAnywhere() {
  const mine = (promised = {});
  const row = isOwn() ? -1 : state.rows.get(state.image);
  if (row >= 0 && state.images.truth[row] === state.label && state.table) {
    const found = Object.entries(state.table.defenders);
    state.anywhere = Object.fromEntries(found.map(([name, { rank, min_k }]) => [name, { rank: rank[row], min_k: min_k[row] }]));
    return;
  }
  const [{ defenders }] = (await post("/certify", question())).certificates;
  if (mine === promised) state.anywhere = defenders;
}

function forgetTables() {
  state.table = null;
  state.anywhere = null;
  promised = null;
  asked += 1;
}

function question(attack = false) {
  const { label, view } = state;
  const asking = { label, patches: [patchName()], ties: state.about.ties, attack };
  if (!isOwn()) return { ...asking, image: state.image, view };
  const votes = state.own.votes[view];
  const ballots = votes.labels ? { labels: votes.labels, units: votes.units, cap: votes.cap } : { ballots: votes.ballots };
  return { ...asking, ...ballots };
}

async function open(image) {
  await showTrouble(async () => {
    const turn = ++opening;
    const votes = await get(`/votes/${path(image)}`, { ballots: state.view });
    if (turn !== opening) return;
    state.own = null;
    state.image = image;
    state.label = votes.truth;
    take(votes);
    const picture = $("picture");
    picture.hidden = !state.about.pictures;
    $("no-picture").hidden = state.about.pictures;
    if (state.about.pictures) picture.src = `/pictures/${path(image)}`;
    picture.alt = `${state.name(votes.truth)}, ${image}`;
    $("upload-answer").textContent = "";
    await settle();
  });
}

// From the gallery, which on a phone lies far below the picture.
async function openAndShow(image) {
  await open(image);
  if ($("stage").getBoundingClientRect().bottom < 80) $("stage").scrollIntoView({ block: "start" });
}

function take(votes) {
  state.election = asElection(votes, state.about, state.about.views[state.view]);
  $("label").value = state.label;
  chooseColours();
}

// After the image, the label or the view changed.
async function settle() {
  state.anywhere = null;
  promised = null;
  draw();
  if (state.table) await refreshAnywhere();
  draw();
  drawGallery(state, openAndShow);
}

async function upload(file) {
  await showTrouble(async () => {
    const turn = ++opening;
    $("upload-answer").textContent = "The model looks at it …";
    let found;
    try {
      found = await send("/predict?k=5", file);
    } catch (error) {
      $("upload-answer").textContent = "";
      throw error;
    }
    if (turn !== opening) return;
    state.own = found;
    state.image = null;
    state.label = state.own.top[0].label;
    take(state.own.votes[state.view]);
    $("picture").hidden = false;
    $("no-picture").hidden = true;
    $("picture").src = state.own.picture;
    $("picture").alt = "your picture, as the model sees it";
    const list = state.own.top.map(({ label, votes }) => `${state.name(label)} (${votes.toFixed(1)})`).join(", ");
    $("upload-answer").textContent = `It is taken for: ${list}. Choose the label to keep on top.`;
    await settle();
  });
}

async function goToWorst() {
  await showTrouble(async () => {
    let place;
    if (state.places.count * state.geometry.mutants <= BEARABLE) {
      place = worstPlace(state.election, state.geometry, state.height, state.width, state.label, state.places).patch;
    } else {
      const [{ attack: found }] = (await post("/certify", { ...question(true), defenders: ["costcert"] })).certificates;
      place = found;
    }
    // Along an axis on which every place is alike it stays where it is.
    if (state.places.tops.length > 1) state.top = place.top;
    if (state.places.lefts.length > 1) state.left = place.left;
    draw();
  });
}

function fillControls() {
  const { about } = state;
  const [height, width] = about.image_size;
  const limit = (id, most) => ($(id).max = most);
  limit("size", Math.max(1, Math.min(height, width)));
  limit("height", height);
  limit("k", Math.min(20, about.num_classes));
  const names = about.class_names || [...Array(about.num_classes).keys()].map((label) => `class ${label}`);
  $("label").append(...names.map((name, label) => element("option", { value: label, textContent: name })));
  $("view").value = state.view;
  $("view-label").hidden = Object.keys(about.views).length < 2;
  $("upload-label").hidden = !about.upload;
  fillDefenders();
}

function fillDefenders() {
  const guards = state.about.views[state.view].defenders;
  const options = guards.map((name) => element("option", { value: name, textContent: state.about.defenders[name].title }));
  $("defender").replaceChildren(...options);
  if (!guards.includes(state.defender)) state.defender = guards[0];
  $("defender").value = state.defender;
}

function showSliders() {
  $("size").value = state.width;
  $("height").value = state.height;
  $("k").value = state.k;
  const [height, width] = state.about.image_size;
  const share = (100 * state.width * state.height) / (height * width);
  $("size-shown").textContent = `${state.width} × ${state.height} px, ${share < 9.95 ? share.toFixed(1) : share.toFixed(0)} % of the picture`;
  $("height-shown").textContent = `${state.height} px`;
  $("k-shown").textContent = state.k;
}

let resting;
function resized() {
  const [height, width] = state.about.image_size;
  state.top = Math.min(state.top, height - state.height);
  state.left = Math.min(state.left, width - state.width);
  prepareSize();
  forgetTables();
  showSliders();
  draw();
  clearTimeout(resting);
  resting = setTimeout(() => showTrouble(refreshTables), 120);
}

function listen() {
  const square = () => $("square").checked;
  $("size").addEventListener("input", () => {
    state.width = Number($("size").value);
    if (square()) state.height = state.width;
    resized();
  });
  $("height").addEventListener("input", () => {
    state.height = Number($("height").value);
    resized();
  });
  $("square").addEventListener("change", () => {
    const [height, width] = state.about.image_size;
    $("height-label").hidden = square();
    $("size").max = square() ? Math.min(height, width) : width;
    if (square() && state.height !== state.width) {
      state.width = state.height = Math.min(state.width, height, width);
      resized();
    }
  });
  $("k").addEventListener("input", () => {
    state.k = Number($("k").value);
    showSliders();
    draw();
    drawGallery(state, openAndShow);
    drawAccuracy();
  });
  $("defender").addEventListener("change", () => {
    state.defender = $("defender").value;
    draw();
    drawGallery(state, openAndShow);
    drawAccuracy();
  });
  $("label").addEventListener("change", () =>
    showTrouble(async () => {
      state.label = Number($("label").value);
      chooseColours();
      await settle();
    })
  );
  $("view").addEventListener("change", () =>
    showTrouble(async () => {
      const turn = ++opening;
      forgetTables();
      // Ballots of the other kind say nothing any more.
      state.election = null;
      state.view = $("view").value;
      fillDefenders();
      const votes = isOwn() ? state.own.votes[state.view] : await get(`/votes/${path(state.image)}`, { ballots: state.view });
      if (turn === opening) take(votes);
      prepareSize();
      await refreshTables();
    })
  );
  $("worst").addEventListener("click", goToWorst);
  $("upload").addEventListener("change", async () => {
    const [file] = $("upload").files;
    if (file) await upload(file);
    $("upload").value = "";
  });
  stickerMoves(
    state,
    ({ top, left }) => {
      state.top = top;
      state.left = left;
      drawSoon();
    },
    goToWorst
  );
  new ResizeObserver(drawSoon).observe($("stage"));
  isDark.addEventListener("change", () => {
    chooseColours();
    draw();
  });
}

function lead() {
  const { about } = state;
  const parts = about.ablation.startsWith("blocks") ? "blocks" : about.ablation.includes("+") ? "parts" : "strips";
  $("lead").textContent =
    `The classifier looks at it through ${about.num_mutants.toLocaleString("en")} ${parts}, and each votes for a label. ` +
    "Votes of parts the sticker touches are the attacker’s, whatever he prints on it. Can he push the right label out of the top k?";
  $("footer").textContent = `costcert ${about.version} · ${about.name} · ${about.ablation} on ${about.image_size.join(" × ")} px` +
    `${about.model_name ? ` · ${about.model_name}` : ""} · ties ${about.ties === "against" ? "count against the label" : "go to the lowest label"} · nothing leaves this machine`;
  $("strips-caption").textContent = stripsCaption(state.geometry);
}

// An image that teaches something: right now, certified at this k, but not first.
function firstImage() {
  const table = state.table.defenders[state.defender];
  const rows = [...state.images.ids.keys()].filter((row) => !state.images.unread.includes(row));
  const good = rows.find((row) => table.rank[row] === 1 && table.min_k[row] > 1 && table.min_k[row] <= state.k);
  return state.images.ids[good ?? rows.find((row) => table.rank[row] === 1) ?? rows[0] ?? 0];
}

async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    await enter(token);
    history.replaceState(null, "", location.pathname);
  }
  state.about = await get("/about");
  state.images = await get("/images");
  const { about } = state;
  const [height, width] = about.image_size;
  state.rows = new Map(state.images.ids.map((id, row) => [id, row]));
  state.name = (label) => (about.class_names ? about.class_names[label] : `class ${label}`);
  state.geometry = { height, width, parts: about.parts, mutants: about.num_mutants };
  state.own = null;
  state.view = Object.keys(about.views)[0];
  state.defender = about.views[state.view].defenders[0];
  state.k = Math.min(about.num_classes > 20 ? 5 : 3, about.num_classes);
  state.height = state.width = about.sides[Math.floor((about.sides.length - 1) / 3)];
  state.top = Math.round((height - state.height) / 2);
  state.left = Math.round((width - state.width) / 2);
  fillControls();
  lead();
  prepareSize();
  showSliders();
  $("main").hidden = false;
  startGallery(state, openAndShow);
  listen();
  state.table = await get("/certificates", { patch: patchName(), ballots: state.view });
  await open(firstImage());
  drawGallery(state, openAndShow);
  document.documentElement.dataset.ready = "yes";
  await refreshAccuracy(patchName(), state.view, asked);
}

$("ask-token").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = `token=${encodeURIComponent($("token").value)}`;
  location.reload();
});

// For tests and for people who look under the bonnet.
window.costcert = { state, draw };

start().catch((error) => {
  if (error instanceof Refused && error.status === 401) {
    history.replaceState(null, "", location.pathname);
    $("ask-token").hidden = false;
    return;
  }
  $("trouble").textContent = `The page could not be filled: ${error.message}`;
  $("trouble").hidden = false;
});
