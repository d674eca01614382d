/** What is said to a person. */

const KINDS = {
  __proto__: null, // a kind may have any name
  authentication: "The provider does not accept the credentials",
  bus: "The server cannot reach its own store of events",
  buffer_overflow: "The server could not keep up",
  configuration: "The server is not set up for this",
  connection: "There is no connection to the provider",
  context_overflow: "The conversation is too long for the model",
  internal: "Something failed inside the server",
  interrupted: "The server that ran the turn is gone",
  invalid_output: "The answer does not have the form that was asked for",
  invalid_request: "The provider refused the request",
  malformed_response: "The provider's answer could not be read",
  model_not_found: "The provider does not know the model",
  overloaded: "The provider has no capacity at the moment",
  permission: "The provider does not allow this",
  rate_limited: "Too many requests",
  server: "The provider failed on its side",
  stream_interrupted: "The answer broke off",
  timeout: "It took too long",
  usage_limit: "The budget of tokens is spent",
};

const ENDINGS = {
  __proto__: null,
  aborted: "Stopped.",
  "content-filter": "The model declined to answer.",
  error: "The model's answer was not valid.",
  length: "Cut off: the limit of tokens is reached.",
  other: "Ended early.",
  "tool-calls": "Ended at the limit of steps.",
};

/** An error's kind in words, with its HTTP status. */
export function titleOf(error) {
  const words = KINDS[error?.kind] ?? "The turn failed";
  return error?.status ? `${words} (HTTP ${error.status})` : words;
}

/** Why a turn ended, where it is worth a word. */
export function endingOf(reason) {
  return ENDINGS[reason] ?? "";
}

/** What the server says, as a sentence; what begins with a name or a sign keeps its beginning. */
export function sentence(text) {
  return /[\p{L}\p{N})\]"'`]$/u.test(text) ? `${capital(text)}.` : capital(text);
}

export function capital(text) {
  return /^[a-z]+(?=[\s,:;]|$)/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
}

export function lower(text) {
  return text.charAt(0).toLowerCase() + text.slice(1);
}

/** Whom a turn asks. */
export function sourceOf(provider, model) {
  return model && model !== provider ? `${provider} · ${model}` : provider;
}

export function count(number) {
  return Number(number ?? 0).toLocaleString("en");
}

/** So many of something. */
export function several(number, name) {
  return `${count(number)} ${name}${number === 1 ? "" : "s"}`;
}

export function seconds(number) {
  if (number < 0.1) return `${Math.round(number * 1000)} ms`;
  return number < 10 ? `${number.toFixed(1)} s` : `${Math.round(number)} s`;
}

/** Write into an element what is not there yet. */
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** A new element, its class and its text. */
export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
