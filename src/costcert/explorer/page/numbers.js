// Numbers as people read them.

// This many decimals, as Python and so all reports write them: `toFixed` rounds exact halves up, Python to the even digit.
export function decimals(value, digits) {
  // Only odd multiples of these powers of two are exact halves.
  const halves = value * 2 ** (digits + 1);
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(digits);
  const below = Math.floor(value * 10 ** digits);
  return ((below + (below % 2)) / 10 ** digits).toFixed(digits);
}

// Votes; those of soft ballots are fractions, of which two digits matter to a reader.
export function votesText(votes) {
  if (votes > 0 && votes < 0.005) return "<0.01";
  return Number.isInteger(votes) ? String(votes) : decimals(votes, 2);
}

// Height first, as on the command line.
export const sizeText = ({ height, width }) => `${height} × ${width}`;

// What certificates are against, in words.
export const stickerText = (state) => `${sizeText(state)} pixel sticker${state.on === "original" ? " on the original picture" : ""}`;

export function ordinal(n) {
  const ending = { 1: "st", 2: "nd", 3: "rd" }[n % 10];
  return `${n}${ending && Math.floor((n % 100) / 10) !== 1 ? ending : "th"}`;
}

export const topK = (k) => (k === 1 ? "first place" : `top ${k}`);

// A list of all labels contains every label, whatever an attacker does.
export const isPromise = (minK, classes) => minK < classes;
