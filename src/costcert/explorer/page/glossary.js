// The words of the page and its defenders, each explained in a sentence of the service.

import { element } from "./ranking.js";

export function fillGlossary({ about }) {
  const defenders = Object.values(about.defenders).map(({ title, meaning }) => [title, meaning]);
  const lines = [...Object.entries(about.words), ...defenders].flatMap(([word, text]) => [
    element("dt", { textContent: word }),
    element("dd", { textContent: text }),
  ]);
  document.querySelector("#glossary dl").replaceChildren(...lines);
}
