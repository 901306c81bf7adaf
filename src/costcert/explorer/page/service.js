// Requests to the service: with the token, and with retries while the service is busy.

export class RequestError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

let busyListener = () => {};
// `listener(attempt, attempts)` is called before a request is sent again because the service was busy.
export const onBusy = (listener) => {
  busyListener = listener;
};

async function request(path, options = {}, attempts = 6) {
  for (let attempt = 1; ; attempt++) {
    const response = await fetch(path, { credentials: "same-origin", ...options });
    if (response.ok) return response;
    const isBusy = response.status === 429 || response.status === 503;
    if (!isBusy || attempt >= attempts) {
      let detail = `the service answered ${response.status}`;
      try {
        detail = (await response.json()).detail || detail;
      } catch {
        // Not every refusal is JSON.
      }
      throw new RequestError(response.status, detail);
    }
    busyListener(attempt + 1, attempts);
    await sleep(Math.min(5, Number(response.headers.get("retry-after")) || 1));
  }
}

export const get = async (path, parameters = {}) => {
  const query = new URLSearchParams(parameters).toString();
  return (await request(query ? `${path}?${query}` : path)).json();
};

export const post = async (path, content) => {
  const headers = { "content-type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(content) })).json();
};

export const postFile = async (path, file) => {
  const headers = { "content-type": file.type || "application/octet-stream" };
  return (await request(path, { method: "POST", headers, body: file })).json();
};

// The token is in the fragment of the address, which browsers do not send; after this a cookie holds it.
export async function sendToken(token) {
  await request("/session", { method: "POST", headers: { authorization: `Bearer ${token}` } });
}

// Ids may contain slashes, which stay.
export const encodeId = (id) => id.split("/").map(encodeURIComponent).join("/");
