// Asking the service: brings the token, and comes back later when told to.

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

async function ask(path, options = {}, tries = 6) {
  for (let turn = 1; ; turn++) {
    const answer = await fetch(path, { credentials: "same-origin", ...options });
    if (answer.ok) return answer;
    const later = answer.status === 429 || answer.status === 503;
    if (!later || turn >= tries) {
      let detail = `the service answered ${answer.status}`;
      try {
        detail = (await answer.json()).detail || detail;
      } catch {
        // Not every refusal is JSON.
      }
      throw new Refused(answer.status, detail);
    }
    await pause(Math.min(5, Number(answer.headers.get("retry-after")) || 1));
  }
}

export const get = async (path, parameters = {}) => {
  const query = new URLSearchParams(parameters).toString();
  return (await ask(query ? `${path}?${query}` : path)).json();
};

export const post = async (path, content) => {
  const headers = { "content-type": "application/json" };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(content) })).json();
};

export const send = async (path, file) => {
  return (await ask(path, { method: "POST", headers: { "content-type": file.type }, body: file })).json();
};

// The token comes behind the #, which browsers keep to themselves; a cookie brings it from then on.
export async function enter(token) {
  await ask("/session", { method: "POST", headers: { authorization: `Bearer ${token}` } });
}

// Ids may hold slashes, which stay.
export const path = (id) => id.split("/").map(encodeURIComponent).join("/");
