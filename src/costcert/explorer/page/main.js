// The page: one state, and functions that draw it again when part of it changes.

import { attack, cleanVotes, distinctPlaces, makeElection, maskWindows, MASKING, positions, rewrittenLabels, touched, worstPlace } from "./arithmetic.js";
import { drawCurves } from "./curves.js";
import { drawGallery, startGallery } from "./gallery.js";
import { fillGlossary } from "./glossary.js";
import { endLoading, failLoading, showErrors, showStep } from "./loading.js";
import { decimals, sizeText, stickerText, votesText } from "./numbers.js";
import { drawBars, drawBudget, drawDefenders, drawVerdict, element } from "./ranking.js";
import { changed, onInput, onOriginal, placeAfter } from "./reach.js";
import { RequestError, encodeId, get, post, postFile, sendToken } from "./service.js";
import { addStickerListeners, drawStage, drawStrips, stripsCaption } from "./stage.js";
import { standing } from "./pairs.js";
import { TRIANGLE_CAPTION, asResult, drawMasks, drawRows, drawTriangle } from "./triangle.js";

const $ = (id) => document.getElementById(id);
// Colours of Okabe and Ito for the strongest rivals, strongest first.
const RIVALS = ["#E69F00", "#009E73", "#CC79A7", "#56B4E9"];
// In dark mode the label itself is light blue.
const DARK_RIVALS = ["#E69F00", "#009E73", "#CC79A7", "#F0E442"];
const isDark = matchMedia("(prefers-color-scheme: dark)");
// Places times mutants that are computed in the browser; above that the service does it.
const MAX_BROWSER_WORK = 4e6;

const state = {};
let rivalColours = new Map();
let baseColours = {};
const accuracies = new Map();
// The latest request of each kind: answers to earlier ones are ignored.
let tablesRequest = 0;
let imageRequest = 0;
let certificateRequest = 0;
let reachRequest = 0;
// Footprints of stickers on originals, by sticker and size of the original.
const footprints = new Map();
const MAX_FOOTPRINTS = 64;

const isOnOriginal = () => state.on === "original";

const squareName = (side) => `${isOnOriginal() ? "original" : "square"}:${side}`;

function patchName() {
  if (state.width === state.height) return squareName(state.width);
  return `${isOnOriginal() ? "original" : "rectangle"}:${state.height}x${state.width}`;
}

const colour = (label) => (label === state.label ? baseColours.true : rivalColours.get(label) || baseColours.other);

// Colours are chosen once per image, so that they do not change while the sticker moves.
function chooseColours() {
  if (!state.election) return;
  const style = getComputedStyle(document.documentElement);
  baseColours = { true: style.getPropertyValue("--true").trim(), other: style.getPropertyValue("--other").trim() };
  const { clean } = cleanVotes(state.election, null);
  const rivals = [...clean.keys()].filter((label) => label !== state.label && clean[label] > 0);
  rivals.sort((a, b) => clean[b] - clean[a] || a - b);
  const palette = isDark.matches ? DARK_RIVALS : RIVALS;
  rivalColours = new Map(rivals.slice(0, palette.length).map((label, i) => [label, palette[i]]));
  const swatch = (label, name) => {
    const mark = element("i");
    mark.style.background = colour(label);
    return element("li", {}, mark, name);
  };
  const keys = [state.label, ...rivalColours.keys()].map((label) => swatch(label, state.name(label)));
  if (rivals.length > palette.length) keys.push(swatch(-1, "others"));
  $("keys").replaceChildren(...keys);
}

async function footprintOf(patch, original) {
  if (!original) throw new RequestError(409, "this picture could not be read when the votes were cast, so its size is not known");
  const key = `${patch} of ${original}`;
  if (!footprints.has(key)) {
    const found = await get("/footprint", { patch, original: original.join("x") });
    if (footprints.size >= MAX_FOOTPRINTS) footprints.clear();
    footprints.set(key, found);
  }
  return footprints.get(key);
}

// What a sticker of this size can change in this picture; at once for one on the input.
async function refreshReach() {
  const request = ++reachRequest;
  if (!isOnOriginal()) {
    setReach(onInput(state.geometry, state));
    return;
  }
  state.reach = null;
  const found = await footprintOf(patchName(), state.original);
  if (request === reachRequest) setReach(onOriginal(found));
}

function setReach(reach) {
  Object.assign(state, placeAfter(state, state.lastReach, reach));
  state.reach = state.lastReach = reach;
  preparePlaces();
  showSize();
}

// What the patch that masking defenders mask for can change, which is the sticker unless the run masks for one patch; null for patches
// whose reach is not known here.
function maskedReach() {
  const { mask } = state.about;
  if (mask === null || mask.patch === patchName()) return state.reach;
  return mask.size ? onInput(state.geometry, { height: mask.size[0], width: mask.size[1] }) : null;
}

// The distinct places of the sticker, and the windows of masking defenders, computed once per size.
function preparePlaces() {
  state.places = distinctPlaces(state.geometry, state.reach);
  const affordable = state.places.count * state.geometry.mutants <= MAX_BROWSER_WORK;
  const needed = state.about.views[state.view].defenders.some((name) => MASKING.includes(name));
  const masked = maskedReach();
  state.windows = affordable && needed && masked ? maskWindows(state.geometry, masked, distinctPlaces(state.geometry, masked)) : null;
}

// Draw what depends on the place of the sticker. Returns milliseconds, which a test measures.
export function draw() {
  if (!state.election || !state.reach) return 0;
  const start = performance.now();
  const { masks } = state.geometry;
  const isTouched = touched(state.geometry, state.reach, state);
  const stand = readsRows() ? standing(state.election, masks.regions.length, isTouched, state.label) : null;
  const result = stand ? asResult(stand, state.label) : attack(state.election, isTouched, state.label);
  const here = positions(state.election, isTouched, state.label, {
    budget: state.reach.budget ?? (state.table ? state.table.budget : 0),
    windows: state.windows,
    defenders: state.about.views[state.view].defenders,
    masks,
  });
  // DRS needs the budget, which comes with the table.
  if (!state.table) here.drs = null;
  drawStage(state);
  showSize();
  if (masks) {
    drawTriangle(state, stand, isTouched, colour);
    drawMasks(state, stand, colour);
  } else drawStrips(state, isTouched, rewrittenLabels(state.election, isTouched, result), colour);
  drawBars(state, result, colour);
  if (stand) drawRows(state, stand);
  else drawBudget(state, result, colour);
  drawVerdict(state, result, here, state.anywhere);
  drawDefenders(state, here, state.anywhere);
  return performance.now() - start;
}

let isDrawScheduled = false;
function scheduleDraw() {
  if (isDrawScheduled) return;
  isDrawScheduled = true;
  requestAnimationFrame(() => {
    isDrawScheduled = false;
    draw();
  });
}

// Certificates of all images, and of this one at all places.
async function refreshTables() {
  clearTables();
  const request = tablesRequest;
  const patch = patchName();
  const view = state.view;
  const table = await get("/certificates", { patch, ballots: view });
  if (request !== tablesRequest) return;
  state.table = table;
  await refreshAnywhere();
  if (request !== tablesRequest) return;
  drawGallery(state, openAndShow);
  draw();
  await refreshAccuracy(patch, view, request);
}

async function refreshAccuracy(patch, view, request) {
  const key = (name) => `${view} ${name}`;
  const load = async (name) => {
    if (!accuracies.has(key(name))) accuracies.set(key(name), await get("/accuracy", { patch: name, ballots: view }));
  };
  await load(patch);
  if (request !== tablesRequest) return;
  drawAccuracy();
  for (const side of state.sides) {
    await load(squareName(side));
    if (request !== tablesRequest) return;
    drawAccuracy();
  }
}

function drawAccuracy() {
  const sides = new Map(state.sides.map((side) => [side, accuracies.get(`${state.view} ${squareName(side)}`)]));
  drawCurves(state, accuracies.get(`${state.view} ${patchName()}`), sides);
}

// Whether the chosen defender reads the rows of masks instead of counting votes.
const readsRows = () => state.geometry.masks !== null && state.defender === "patchcleanser";

const isUpload = () => state.upload !== null;

// Rank and min-k of this image: from the table, or from a request for another label or an upload.
async function refreshAnywhere() {
  const request = ++certificateRequest;
  const row = isUpload() ? -1 : state.rows.get(state.image);
  if (row >= 0 && state.images.truth[row] === state.label && state.table) {
    const found = Object.entries(state.table.defenders);
    state.anywhere = Object.fromEntries(found.map(([name, { rank, min_k }]) => [name, { rank: rank[row], min_k: min_k[row] }]));
    return;
  }
  const [{ defenders }] = (await post("/certify", certifyRequest())).certificates;
  if (request === certificateRequest) state.anywhere = defenders;
}

function clearTables() {
  state.table = null;
  state.anywhere = null;
  certificateRequest += 1;
  tablesRequest += 1;
}

function certifyRequest(attack = false) {
  const { label, view } = state;
  const common = { label, patches: [patchName()], ties: state.about.ties, attack };
  if (!isUpload()) return { ...common, image: state.image, view };
  const votes = state.upload.votes[view];
  const ballots = votes.labels ? { labels: votes.labels, units: votes.units, cap: votes.cap } : { ballots: votes.ballots };
  return { ...common, ...ballots, ...(votes.original ? { original: votes.original } : {}) };
}

async function open(image) {
  const request = ++imageRequest;
  const votes = await get(`/votes/${encodeId(image)}`, { ballots: state.view });
  // Refused before anything changes.
  if (isOnOriginal()) await footprintOf(patchName(), votes.original);
  if (request !== imageRequest) return;
  state.upload = null;
  state.image = image;
  state.trueLabel = state.label = votes.truth;
  state.labelOrigin = "true";
  setVotes(votes);
  showPicture(state.about.pictures ? `/pictures/${encodeId(image)}` : null, `${state.name(votes.truth)}, ${image}`);
  $("upload-answer").replaceChildren();
  await setOriginal(votes.original);
  await refreshImage();
}

// The size of the picture that is shown, before it was prepared.
async function setOriginal(original) {
  state.original = original;
  if (isOnOriginal()) await refreshReach();
}

function showPicture(source, description) {
  const picture = $("picture");
  picture.hidden = source === null;
  $("no-picture").hidden = source !== null;
  $("no-picture").textContent = "The picture is not here, but its votes are. To show pictures, start costcert explore with --data.";
  picture.alt = description;
  if (source !== null) picture.src = source;
}

function onPictureError() {
  $("picture").hidden = true;
  $("no-picture").hidden = false;
  $("no-picture").textContent = "The picture cannot be read, but its votes are here.";
}

// From the gallery, which is far below the picture on a phone.
async function openAndShow(image) {
  await showErrors(() => open(image));
  if ($("stage").getBoundingClientRect().bottom < 80) $("stage").scrollIntoView({ block: "start" });
}

function setVotes(votes) {
  state.election = makeElection(votes, state.about, state.about.views[state.view]);
  $("label").value = state.label;
  chooseColours();
}

// After the image or the label changed.
async function refreshImage() {
  state.anywhere = null;
  certificateRequest += 1;
  draw();
  if (state.table) await refreshAnywhere();
  draw();
  drawGallery(state, openAndShow);
}

async function upload(file) {
  await showErrors(async () => {
    const request = ++imageRequest;
    const answer = $("upload-answer");
    const before = [...answer.childNodes];
    answer.textContent = `The model looks at ${file.name} …`;
    let found;
    try {
      found = await postFile("/predict?k=5", file);
      if (isOnOriginal()) await footprintOf(patchName(), found.votes[state.view].original);
    } catch (error) {
      if (request === imageRequest) answer.replaceChildren(...before);
      throw error;
    }
    if (request !== imageRequest) return;
    state.upload = found;
    state.image = null;
    state.label = state.upload.top[0].label;
    state.labelOrigin = "predicted";
    setVotes(state.upload.votes[state.view]);
    showPicture(state.upload.picture, "your picture, as the model sees it");
    showPredictions(file.name);
    await setOriginal(found.votes[state.view].original);
    await refreshImage();
  });
}

// The prediction of an uploaded picture; each label of it can be chosen, as all labels can in the list.
function showPredictions(file) {
  const choices = state.upload.top.map(({ label, votes }) => {
    const text = `${state.name(label)} (${votesText(votes)})`;
    const choice = element("button", { type: "button", textContent: text });
    choice.dataset.label = label;
    choice.addEventListener("click", () => showErrors(() => chooseLabel(label)));
    return choice;
  });
  const brackets = state.upload.ranked_by === "score" ? "scores, of 1 at most" : "votes";
  $("upload-answer").replaceChildren(
    element("p", { textContent: `The model predicts “${state.name(state.label)}” for ${file} (in brackets: ${brackets}). What does your picture show?` }),
    element("p", { className: "choices" }, ...choices),
    element("p", { className: "quiet", textContent: "All labels are in the list “Label to keep”." })
  );
}

async function chooseLabel(label) {
  state.label = label;
  state.labelOrigin = !isUpload() && label === state.trueLabel ? "true" : "chosen";
  $("label").value = label;
  chooseColours();
  await refreshImage();
}

async function moveToWorstPlace() {
  if (!state.reach) return;
  await showErrors(async () => {
    let place;
    if (state.places.count * state.geometry.mutants <= MAX_BROWSER_WORK) {
      place = worstPlace(state.election, state.geometry, state.reach, state.label, state.places, readsRows()).place;
    } else {
      const [{ attack: found }] = (await post("/certify", { ...certifyRequest(true), defenders: [readsRows() ? state.defender : "costcert"] })).certificates;
      place = found;
    }
    // Along an axis where all places are equal the sticker does not move.
    if (state.places.tops.length > 1) state.top = place.top;
    if (state.places.lefts.length > 1) state.left = place.left;
    draw();
  });
}

function fillControls() {
  const { about } = state;
  $("k").max = state.longestList;
  setLongest();
  $("on-label").hidden = about.original === null;
  $("on").value = state.on;
  const names = about.class_names || [...Array(about.num_classes).keys()].map((label) => `class ${label}`);
  $("label").append(...names.map((name, label) => element("option", { value: label, textContent: name })));
  $("view").value = state.view;
  showView();
  $("view-label").hidden = Object.keys(about.views).length < 2;
  $("upload-label").hidden = !about.upload;
  fillDefenders();
}

// Which classifier this page is about: hard ballots of soft votes are another one.
function showView() {
  $("view-note").textContent = state.about.views[state.view].meaning;
}

function fillDefenders() {
  const names = state.about.views[state.view].defenders;
  const options = names.map((name) => {
    const { title, meaning } = state.about.defenders[name];
    return element("option", { value: name, textContent: title, title: meaning });
  });
  $("defender").replaceChildren(...options);
  if (!names.includes(state.defender)) state.defender = names[0];
  $("defender").value = state.defender;
}

// The largest stickers, which differ between the original and the input.
function setLongest() {
  const [height, width] = state.longest;
  $("size").max = $("square").checked ? Math.max(1, Math.min(height, width)) : width;
  $("height").max = height;
}

// One slider for a square, two for other stickers.
function showShape(isSquare) {
  $("square").checked = isSquare;
  $("height-label").hidden = isSquare;
  $("size-name").textContent = isSquare ? "Side" : "Width";
  $("size").setAttribute("aria-label", `Sticker ${isSquare ? "side" : "width"} in pixels`);
}

// Whether the sticker is on the input or on the original, and the sizes that it has there.
function setOn(on) {
  const { about } = state;
  state.on = on;
  state.sides = isOnOriginal() ? about.original.sides : about.sides;
  // Masks say nothing about a sticker larger than the one they were made for.
  state.longest = isOnOriginal() ? about.original.longest : about.masks ? about.masks.patch : about.image_size;
  const side = state.sides[Math.floor((state.sides.length - 1) / 3)];
  [state.height, state.width] = isOnOriginal() ? about.original.start : [side, side];
}

// The size of the sticker, and of what it changes at this place.
function showSize() {
  let text = `${sizeText(state)} px`;
  if (isOnOriginal()) {
    if (state.reach) {
      text += ` on the ${state.reach.picture.join(" × ")} picture; at the model’s input it changes ${changed(state.reach, state)}`;
    } else text += " on the original picture";
  } else {
    const [height, width] = state.about.image_size;
    const share = (100 * state.width * state.height) / (height * width);
    text += `, ${share < 0.05 ? "less than 0.1" : decimals(share, 1)} % of the picture`;
  }
  // A live region, which is read aloud whenever it is set.
  if ($("size-shown").textContent !== text) $("size-shown").textContent = text;
}

function showSliders() {
  $("size").value = state.width;
  $("height").value = state.height;
  $("k").value = state.k;
  showSize();
  $("height-shown").textContent = `${state.height} px`;
  $("width-shown").textContent = `${state.width} px`;
  $("k-shown").textContent = state.k;
}

let refreshTimer;
function onResize() {
  state.reach = null;
  clearTables();
  if (!isOnOriginal()) refreshReach();
  showSliders();
  draw();
  clearTimeout(refreshTimer);
  const refresh = async () => {
    if (isOnOriginal()) await refreshReach();
    await refreshTables();
  };
  refreshTimer = setTimeout(() => showErrors(refresh), 120);
}

function addListeners() {
  const square = () => $("square").checked;
  $("size").addEventListener("input", () => {
    state.width = Number($("size").value);
    if (square()) state.height = state.width;
    onResize();
  });
  $("height").addEventListener("input", () => {
    state.height = Number($("height").value);
    onResize();
  });
  $("square").addEventListener("change", () => {
    const [height, width] = state.longest;
    showShape(square());
    setLongest();
    if (square() && state.height !== state.width) {
      state.width = state.height = Math.min(state.width, height, width);
      onResize();
    }
  });
  $("on").addEventListener("change", () => {
    setOn($("on").value);
    showShape(state.height === state.width);
    setLongest();
    onResize();
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
  $("label").addEventListener("change", () => showErrors(() => chooseLabel(Number($("label").value))));
  $("picture").addEventListener("error", onPictureError);
  $("view").addEventListener("change", () =>
    showErrors(async () => {
      const request = ++imageRequest;
      clearTables();
      // The ballots of the other kind are not valid here.
      state.election = null;
      state.view = $("view").value;
      showView();
      fillDefenders();
      const votes = isUpload() ? state.upload.votes[state.view] : await get(`/votes/${encodeId(state.image)}`, { ballots: state.view });
      if (request === imageRequest) setVotes(votes);
      if (state.reach) preparePlaces();
      await refreshTables();
    })
  );
  $("worst").addEventListener("click", moveToWorstPlace);
  $("upload").addEventListener("change", async () => {
    const [file] = $("upload").files;
    // Cleared at once, so that the same file can be chosen again.
    $("upload").value = "";
    if (file) await upload(file);
  });
  addStickerListeners(
    state,
    ({ top, left }) => {
      state.top = top;
      state.left = left;
      scheduleDraw();
    },
    moveToWorstPlace
  );
  new ResizeObserver(scheduleDraw).observe($("stage"));
  isDark.addEventListener("change", () => {
    chooseColours();
    draw();
  });
}

function fillTexts() {
  const { about } = state;
  const parts = about.ablation.startsWith("blocks") ? "blocks" : about.ablation.includes("+") ? "parts" : "strips";
  const copies = about.num_mutants.toLocaleString("en");
  $("lead").textContent = about.masks
    ? `The classifier sees ${copies} copies of it, each with one or two of ${about.masks.regions.length} masks over it, and each of them votes for a label. ` +
      "A sticker cannot change the copies that hide it. Can it push the right label out of the top k?"
    : `The classifier sees it in ${copies} ${parts}, and each of them votes for a label. ` +
    "The attacker controls the votes of all parts that the sticker touches. Can it push the right label out of the top k?";
  $("footer").textContent = `costcert ${about.version} · ${about.name} · ${about.ablation} on ${about.image_size.join(" × ")} px` +
    `${about.model_name ? ` · ${about.model_name}` : ""} · ties ${about.ties === "against" ? "count against the label" : "go to the lowest label"} · nothing leaves this machine`;
  $("strips-caption").textContent = about.masks ? TRIANGLE_CAPTION : stripsCaption(state.geometry);
}

// A good example: predicted correctly, and certified at this k but not at k = 1.
function firstImage() {
  const table = state.table.defenders[state.defender];
  const rows = [...state.images.ids.keys()].filter((row) => !state.images.unread.includes(row));
  const good = rows.find((row) => table.rank[row] === 1 && table.min_k[row] > 1 && table.min_k[row] <= state.k);
  return state.images.ids[good ?? rows.find((row) => table.rank[row] === 1) ?? rows[0] ?? 0];
}

async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    await sendToken(token);
    history.replaceState(null, "", location.pathname);
  }
  showStep("the description of this run");
  state.about = await get("/about");
  const { about } = state;
  const images = `${about.images.toLocaleString("en")} images of ${about.name}`;
  showStep(`the list of the ${images}`);
  state.images = await get("/images");
  const [height, width] = about.image_size;
  state.original = state.reach = state.lastReach = state.top = state.left = null;
  state.rows = new Map(state.images.ids.map((id, row) => [id, row]));
  state.name = (label) => (about.class_names ? about.class_names[label] : `class ${label}`);
  state.geometry = { height, width, parts: about.parts, masks: about.masks, mutants: about.num_mutants };
  state.upload = null;
  state.view = Object.keys(about.views)[0];
  state.defender = about.views[state.view].defenders[0];
  // The list of all labels contains every label: nothing to promise.
  state.longestList = Math.max(1, Math.min(20, about.num_classes - 1));
  state.k = Math.min(about.num_classes > 20 ? 5 : 3, state.longestList);
  setOn(about.original && about.original.only ? "original" : "input");
  showShape(state.height === state.width);
  fillControls();
  fillTexts();
  fillGlossary(state);
  if (!isOnOriginal()) refreshReach();
  showSliders();
  startGallery(state, openAndShow);
  addListeners();
  showStep(`certificates of the ${images} against a ${stickerText(state)}; the first time takes longest`);
  state.table = await get("/certificates", { patch: patchName(), ballots: state.view });
  showStep("the first image");
  // Shown before it is drawn, because charts are as wide as they are shown.
  $("main").hidden = false;
  await open(firstImage());
  drawGallery(state, openAndShow);
  drawAccuracy();
  endLoading();
  document.documentElement.dataset.ready = "yes";
  await showErrors(() => refreshAccuracy(patchName(), state.view, tablesRequest));
}

$("ask-token").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = `token=${encodeURIComponent($("token").value)}`;
  location.reload();
});

// For tests and debugging.
window.costcert = { state, draw };

start().catch((error) => {
  $("main").hidden = true;
  if (error instanceof RequestError && error.status === 401) {
    history.replaceState(null, "", location.pathname);
    endLoading();
    $("ask-token").hidden = false;
    return;
  }
  failLoading(error);
});
