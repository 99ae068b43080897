/** Anything that went wrong, but for the caller's own abort, which is the AbortSignal's reason as everywhere. */
export class MulgilError extends Error {
    name = "MulgilError";
    type;
    param;
    code;
    constructor(body, options) {
        super(body.message, options);
        this.type = body.type ?? null;
        this.param = body.param ?? null;
        this.code = body.code ?? null;
    }
}
/** The gateway refused the request, with a status. Nothing was generated. */
export class StatusError extends MulgilError {
    name = "StatusError";
    status;
    /** Seconds after which another try makes sense, where the gateway says so. */
    retryAfter;
    /** False where another try would be refused just the same. */
    retryable;
    /** What to tell the operator. */
    requestId;
    constructor(status, body, headers) {
        super(body);
        this.status = status;
        this.retryAfter = retryAfter(headers);
        this.retryable = RETRYABLE.has(status) && headers.get("x-should-retry") !== "false";
        this.requestId = headers.get("x-request-id");
    }
}
/** 401: no key, or one that is wrong, expired or disabled. */
export class AuthenticationError extends StatusError {
    name = "AuthenticationError";
}
/** 403: the key may not use this model or feature. */
export class PermissionError extends StatusError {
    name = "PermissionError";
}
/** 404: no such model, or no such stream. */
export class NotFoundError extends StatusError {
    name = "NotFoundError";
}
/** 422: a field is missing, of a wrong type or out of range; `param` says which. */
export class ValidationError extends StatusError {
    name = "ValidationError";
}
/** 429: a budget is used up. `retryable` is false for a request that can never fit. */
export class RateLimitError extends StatusError {
    name = "RateLimitError";
}
/** 503: the engine is loading or gone, or its queue is full. */
export class UnavailableError extends StatusError {
    name = "UnavailableError";
}
/** The gateway said in the middle of the stream that the answer failed. What had arrived is part of an answer. */
export class StreamFailedError extends MulgilError {
    name = "StreamFailedError";
}
/** The line broke, and the answer is not whole. */
export class ConnectionLostError extends MulgilError {
    name = "ConnectionLostError";
    /** Where `followStream` can go on; null where the server does not keep the stream. */
    resumable;
    constructor(message, resumable, options) {
        super({ message, code: "connection_lost" }, options);
        this.resumable = resumable;
    }
}
/** The error that this answer is. */
export async function errorOf(response) {
    const body = await bodyOf(response);
    const kind = KINDS[response.status] ?? StatusError;
    return new kind(response.status, body, response.headers);
}
const RETRYABLE = new Set([408, 429, 500, 502, 503, 504]);
const KINDS = {
    401: AuthenticationError,
    403: PermissionError,
    404: NotFoundError,
    422: ValidationError,
    429: RateLimitError,
    503: UnavailableError,
};
async function bodyOf(response) {
    try {
        const { error } = (await response.json());
        if (typeof error?.message === "string") {
            return { message: error.message, type: error.type ?? null, param: error.param ?? null, code: error.code ?? null };
        }
    }
    catch {
        // A proxy's own page, or a line that broke: the status is all there is.
    }
    return { message: `The server answered with status ${response.status}.`, type: null, param: null, code: null };
}
function retryAfter(headers) {
    const milliseconds = Number(headers.get("retry-after-ms") ?? Number.NaN);
    if (Number.isFinite(milliseconds))
        return Math.max(0, milliseconds / 1000);
    const value = headers.get("retry-after");
    if (value === null)
        return null;
    const seconds = /^\d+$/.test(value.trim()) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
    return Number.isFinite(seconds) ? Math.max(0, seconds) : null;
}
