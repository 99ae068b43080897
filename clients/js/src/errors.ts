/** What the gateway says about a failure: `error` of the body of every answer that is none. */
export interface ErrorBody {
  message: string;
  type: string | null;
  param: string | null;
  code: string | null;
}

/** Anything that went wrong, but for the caller's own abort, which is the AbortSignal's reason as everywhere. */
export class MulgilError extends Error {
  override name = "MulgilError";
  readonly type: string | null;
  readonly param: string | null;
  readonly code: string | null;

  constructor(body: Partial<ErrorBody> & { message: string }, options?: ErrorOptions) {
    super(body.message, options);
    this.type = body.type ?? null;
    this.param = body.param ?? null;
    this.code = body.code ?? null;
  }
}

/** The gateway refused the request, with a status. Nothing was generated. */
export class StatusError extends MulgilError {
  override name = "StatusError";
  readonly status: number;
  /** Seconds after which another try makes sense, where the gateway says so. */
  readonly retryAfter: number | null;
  /** False where another try would be refused just the same. */
  readonly retryable: boolean;
  /** What to tell the operator. */
  readonly requestId: string | null;

  constructor(status: number, body: ErrorBody, headers: Headers) {
    super(body);
    this.status = status;
    this.retryAfter = retryAfter(headers);
    this.retryable = RETRYABLE.has(status) && headers.get("x-should-retry") !== "false";
    this.requestId = headers.get("x-request-id");
  }
}

/** 401: no key, or one that is wrong, expired or disabled. */
export class AuthenticationError extends StatusError {
  override name = "AuthenticationError";
}

/** 403: the key may not use this model or feature. */
export class PermissionError extends StatusError {
  override name = "PermissionError";
}

/** 404: no such model, or no such stream. */
export class NotFoundError extends StatusError {
  override name = "NotFoundError";
}

/** 422: a field is missing, of a wrong type or out of range; `param` says which. */
export class ValidationError extends StatusError {
  override name = "ValidationError";
}

/** 429: a budget is used up. `retryable` is false for a request that can never fit. */
export class RateLimitError extends StatusError {
  override name = "RateLimitError";
}

/** 503: the engine is loading or gone, or its queue is full. */
export class UnavailableError extends StatusError {
  override name = "UnavailableError";
}

/** The gateway said in the middle of the stream that the answer failed. What had arrived is part of an answer. */
export class StreamFailedError extends MulgilError {
  override name = "StreamFailedError";
}

/** The line broke, and the answer is not whole. */
export class ConnectionLostError extends MulgilError {
  override name = "ConnectionLostError";
  /** Where `followStream` can go on; null where the server does not keep the stream. */
  readonly resumable: StreamPosition | null;

  constructor(message: string, resumable: StreamPosition | null, options?: ErrorOptions) {
    super({ message, code: "connection_lost" }, options);
    this.resumable = resumable;
  }
}

/** A place in a kept stream. */
export interface StreamPosition {
  /** The stream's id, `stream_…`. */
  id: string;
  /** How much of it has been read: the `id` of the last event. Not set: nothing. */
  offset?: string | undefined;
}

/** The error that this answer is. */
export async function errorOf(response: Response): Promise<StatusError> {
  const body = await bodyOf(response);
  const kind = KINDS[response.status] ?? StatusError;
  return new kind(response.status, body, response.headers);
}

const RETRYABLE = new Set([408, 429, 500, 502, 503, 504]);

const KINDS: Record<number, typeof StatusError> = {
  401: AuthenticationError,
  403: PermissionError,
  404: NotFoundError,
  422: ValidationError,
  429: RateLimitError,
  503: UnavailableError,
};

async function bodyOf(response: Response): Promise<ErrorBody> {
  try {
    const { error } = (await response.json()) as { error?: Partial<ErrorBody> };
    if (typeof error?.message === "string") {
      return { message: error.message, type: error.type ?? null, param: error.param ?? null, code: error.code ?? null };
    }
  } catch {
    // A proxy's own page, or a line that broke: the status is all there is.
  }
  return { message: `The server answered with status ${response.status}.`, type: null, param: null, code: null };
}

function retryAfter(headers: Headers): number | null {
  const milliseconds = Number(headers.get("retry-after-ms") ?? Number.NaN);
  if (Number.isFinite(milliseconds)) return Math.max(0, milliseconds / 1000);
  const value = headers.get("retry-after");
  if (value === null) return null;
  const seconds = /^\d+$/.test(value.trim()) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : null;
}
