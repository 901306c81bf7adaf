// The gallery: which images are certified, filtered and sorted.

import { isPromise } from "./numbers.js";
import { element } from "./ranking.js";
import { encodeId } from "./service.js";

const $ = (id) => document.getElementById(id);
const PAGE_SIZE = 60;
let shownCards = PAGE_SIZE;

const isCertified = (state, minK) => minK <= state.k && isPromise(minK, state.about.num_classes);

// Rows of the images that pass the filters, in order.
export function filteredRows(state, filters) {
  const table = state.table && state.table.defenders[state.defender];
  const rows = [];
  for (let row = 0; row < state.images.ids.length; row++) {
    if (filters.class !== "" && state.images.truth[row] !== Number(filters.class)) continue;
    if (table) {
      const certified = isCertified(state, table.min_k[row]);
      if (filters.certified && certified !== (filters.certified === "yes")) continue;
      const rank = table.rank[row];
      if (filters.rank === "first" && rank !== 1) continue;
      if (filters.rank === "top" && rank > state.k) continue;
      if (filters.rank === "out" && rank <= state.k) continue;
    }
    rows.push(row);
  }
  if (table && filters.sort) {
    const sign = filters.sort === "up" ? 1 : -1;
    rows.sort((a, b) => sign * (table.min_k[a] - table.min_k[b]) || a - b);
  }
  return rows;
}

export function startGallery(state, open) {
  const classes = $("class");
  for (const label of [...new Set(state.images.truth)].sort((a, b) => a - b)) {
    classes.append(element("option", { value: label, textContent: state.name(label) }));
  }
  for (const id of ["class", "certified", "rank", "sort"]) {
    $(id).addEventListener("change", () => {
      shownCards = PAGE_SIZE;
      drawGallery(state, open);
    });
  }
  $("more").addEventListener("click", () => {
    shownCards += PAGE_SIZE;
    drawGallery(state, open);
  });
}

export function drawGallery(state, open) {
  const filters = Object.fromEntries(["class", "certified", "rank", "sort"].map((id) => [id, $(id).value]));
  const rows = filteredRows(state, filters);
  const table = state.table && state.table.defenders[state.defender];
  $("shown").textContent = `${rows.length.toLocaleString("en")} of ${state.images.ids.length.toLocaleString("en")}`;
  const tiny = Math.max(state.geometry.height, state.geometry.width) <= 96;
  const cards = $("cards");
  const existing = new Map([...cards.children].map((card) => [Number(card.dataset.row), card]));
  const wanted = rows.slice(0, shownCards).map((row) => {
    const card = existing.get(row) || newCard(state, row, tiny, open);
    const minK = table ? table.min_k[row] : null;
    const certified = minK !== null && isCertified(state, minK);
    const badge = card.lastChild;
    const promise = minK === null ? "…" : isPromise(minK, state.about.num_classes) ? `min-k ${minK}` : "no promise";
    badge.textContent = minK === null ? "…" : `${certified ? "✓" : "✗"} ${promise}`;
    badge.className = `badge ${minK === null ? "" : certified ? "yes" : "no"}`;
    card.setAttribute("aria-label", `${state.name(state.images.truth[row])}, ${promise}, ${state.images.ids[row]}`);
    card.setAttribute("aria-current", state.image === state.images.ids[row]);
    return card;
  });
  cards.replaceChildren(...wanted);
  $("more").hidden = rows.length <= shownCards;
}

function newCard(state, row, tiny, open) {
  const id = state.images.ids[row];
  const name = state.name(state.images.truth[row]);
  const card = element("button", { type: "button", title: `${name} (${id})` });
  card.dataset.row = row;
  const text = () => element("span", { className: "text", textContent: name });
  if (state.about.pictures) {
    const image = element("img", { alt: "", loading: "lazy", className: tiny ? "tiny" : "", src: `/pictures/${encodeId(id)}` });
    image.addEventListener("error", () => image.replaceWith(text()), { once: true });
    card.append(image);
  } else {
    card.append(text());
  }
  card.append(element("span", { className: "badge" }));
  card.addEventListener("click", () => open(id));
  return card;
}
