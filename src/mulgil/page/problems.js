import {
  AuthenticationError,
  ConnectionLostError,
  NotFoundError,
  PermissionError,
  RateLimitError,
  StatusError,
  StreamFailedError,
  UnavailableError,
  ValidationError,
} from "./client/index.js";

/**
 * What to tell a person about an error, and what can be done.
 *
 * @returns word and values for `Words.say`; detail, the server's own message; wait, seconds before another try;
 *   again, whether another try makes sense; key, whether another key is needed; resumable, where to go on.
 */
export function problemOf(error, hadKey) {
  const detail = detailOf(error);
  const about = (word, more = {}) => ({ word, values: [], detail, wait: 0, again: false, key: false, resumable: null, ...more });
  if (error instanceof AuthenticationError) return about(hadKey ? "badKey" : "noKey", { key: true });
  if (error instanceof PermissionError) return about("forbidden", { again: true });
  if (error instanceof NotFoundError) {
    return about(error.code === "stream_not_found" ? "noStream" : "noModel", { again: true });
  }
  if (error instanceof ValidationError) return about("invalid", { values: [error.param] });
  if (error.code === "insufficient_quota") return about("noQuota");
  if (error instanceof RateLimitError) {
    return error.retryable ? about("busyBudget", { again: true, wait: secondsOf(error) }) : about("neverFits");
  }
  if (error instanceof UnavailableError) return about("unavailable", { again: true, wait: secondsOf(error) });
  if (error instanceof StatusError) return ofStatus(error, about);
  if (error instanceof StreamFailedError) return about("failed", { again: true });
  if (error instanceof ConnectionLostError) return about("broken", { again: true, resumable: error.resumable });
  return about("unknown", { again: true });
}

function ofStatus(error, about) {
  if (error.code === "context_length_exceeded") return about("tooLong");
  if (error.status === 413) return about("tooLarge");
  if (error.status < 500) return about("invalid", { values: [error.param] });
  return about("unavailable", { again: true, wait: secondsOf(error) });
}

function secondsOf(error) {
  return Math.ceil(error.retryAfter ?? 0);
}

function detailOf(error) {
  return { message: error.message ?? String(error), requestId: error.requestId ?? null };
}
