// What is loading, what failed, and how to try again.

import { RequestError, onBusy } from "./service.js";

const $ = (id) => document.getElementById(id);

let step = "the page";

// `what` is loading now.
export function showStep(what) {
  step = what;
  $("loading-step").textContent = `Loading ${what} …`;
  $("loading-busy").hidden = true;
}

onBusy((attempt, attempts) => {
  $("loading-busy").textContent = `This takes longer than usual: the service is busy (attempt ${attempt} of ${attempts}).`;
  $("loading-busy").hidden = false;
});

export function endLoading() {
  $("loading").hidden = true;
}

export function failLoading(error) {
  endLoading();
  showFailure(error, `Could not load ${step.split(";")[0]}. `, () => location.reload());
}

// A request that was refused is refused again; one that failed or came too early may succeed.
const isWorthRetrying = (error) => !(error instanceof RequestError) || error.status >= 500 || error.status === 429;

const sentence = (error) =>
  error instanceof RequestError
    ? `${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`
    : `The service cannot be reached (${error.message}): is costcert explore still running?`;

function showFailure(error, prefix, retry) {
  $("trouble-text").textContent = `${prefix}${sentence(error)}`;
  $("retry").hidden = !isWorthRetrying(error);
  $("retry").onclick = retry;
  $("trouble").hidden = false;
  // It is above the picture, which may be far away on a phone.
  $("trouble").scrollIntoView({ block: "nearest" });
}

// Run an action; if it fails, say so and offer to repeat it.
export async function showErrors(action) {
  try {
    await action();
    $("trouble").hidden = true;
  } catch (error) {
    showFailure(error, "", () => showErrors(action));
  }
}
