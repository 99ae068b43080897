import { ChatStream, chunkOf, endingOf } from "./answer.js";
import { ConnectionLostError, errorOf, StatusError } from "./errors.js";
import { backOff, BrokenLine, eventsOf, sleep, unlessAborted } from "./line.js";
/**
 * Answer a conversation, piece by piece.
 *
 * Reading it throws a `StatusError` (`AuthenticationError`, `ValidationError`, `RateLimitError`, `UnavailableError`, …)
 * where the gateway refuses, a `StreamFailedError` where the answer fails, a `ConnectionLostError` where the line
 * breaks for good, and the signal's reason where it is aborted.
 */
export function streamChat(options) {
    const follower = new Follower(options);
    return new ChatStream(follower.chunks(() => post(follower, options)), options);
}
/** Read a kept stream: one that another page started, or one whose line broke (`ConnectionLostError.resumable`). */
export function followStream(options) {
    const follower = new Follower(options, options.position);
    return new ChatStream(follower.chunks(() => follower.reopen()), options);
}
/** The body of a chat that is streamed with its usage. */
export function chatBody(options, resumable) {
    return JSON.stringify({
        ...options.parameters,
        model: options.model,
        messages: options.messages,
        stream: true,
        stream_options: {
            include_usage: true,
            ...options.parameters?.["stream_options"],
            ...(resumable ? { resumable: true } : {}),
        },
    });
}
/** Calls the gateway. */
export class Caller {
    #fetch;
    #base;
    #key;
    constructor(connection) {
        // A browser's fetch wants to be called on its window.
        this.#fetch = connection.fetch ?? ((...request) => globalThis.fetch(...request));
        this.#base = (connection.baseUrl ?? "/v1").replace(/\/+$/, "");
        this.#key = connection.key;
    }
    url(path) {
        return this.#base + path;
    }
    /** @throws BrokenLine - there was no answer. */
    async call(path, request, accept = "text/event-stream") {
        const headers = new Headers({ accept });
        if (this.#key)
            headers.set("authorization", `Bearer ${this.#key}`);
        if (request.body)
            headers.set("content-type", "application/json");
        try {
            return await this.#fetch(this.url(path), { ...request, headers, cache: "no-store" });
        }
        catch (cause) {
            throw new BrokenLine("The server could not be reached.", { cause });
        }
    }
    /** Stop a kept stream, also when the page is being closed. */
    stop(id) {
        this.call(`/streams/${id}`, { method: "DELETE", keepalive: true }).catch(() => { });
    }
}
/** Follows one stream over as many lines as it takes. */
class Follower {
    caller;
    signal;
    #options;
    #position;
    #attempts = 0;
    constructor(options, position = null) {
        this.caller = new Caller(options);
        this.signal = options.signal;
        this.#options = options;
        this.#position = position;
    }
    /** The gateway keeps this stream. */
    kept(id) {
        this.#position = { id };
    }
    async *chunks(open) {
        let abandoned = true;
        try {
            let line = await this.#opened(open);
            while (line) {
                const cause = yield* this.#read(line);
                if (typeof cause === "string") {
                    abandoned = false;
                    return cause;
                }
                line = await this.reopen(cause);
            }
            abandoned = false;
            return "completed";
        }
        catch (error) {
            abandoned = this.signal?.aborted ?? false;
            if (abandoned)
                throw this.signal?.reason;
            throw error instanceof BrokenLine ? this.#lost(error) : error;
        }
        finally {
            // A kept stream goes on without readers; one that nobody wants is stopped.
            if (abandoned && this.#position)
                this.caller.stop(this.#position.id);
        }
    }
    /**
     * A new line to where the last one broke; null if there is nothing left to say.
     *
     * @throws StatusError - the stream is gone, or the key no longer good.
     * @throws BrokenLine - the line stays broken, or the server does not keep the stream.
     */
    async reopen(cause) {
        if (!this.#position)
            throw cause;
        const { attempts = 8, firstDelay = 250, longestDelay = 8_000 } = this.#options.reconnect ?? {};
        let problem = cause;
        while (this.#attempts < attempts) {
            if (problem !== undefined) {
                const attempt = ++this.#attempts;
                const asked = problem instanceof StatusError ? (problem.retryAfter ?? 0) * 1000 : 0;
                const delay = Math.max(asked, backOff(attempt, firstDelay, longestDelay));
                this.#options.onReconnect?.({ attempt, delay, cause: problem });
                await sleep(delay, this.signal);
            }
            const outcome = await this.#try(this.#position);
            if (outcome === null || !(outcome instanceof Error)) {
                if (cause !== undefined)
                    this.#options.onResumed?.();
                return outcome;
            }
            problem = outcome;
        }
        throw problem instanceof BrokenLine ? problem : new BrokenLine("The stream could not be reached.", { cause: problem });
    }
    async #try({ id, offset }) {
        const controller = new AbortController();
        try {
            const path = `/streams/${id}${offset ? `?offset=${offset}` : ""}`;
            const answer = this.caller.call(path, { signal: controller.signal });
            const response = await unlessAborted(answer, this.signal);
            if (response.status === 204)
                return null;
            if (response.ok)
                return { response, close: () => controller.abort() };
            const error = await errorOf(response);
            if (!error.retryable)
                throw error;
            return error;
        }
        catch (error) {
            if (error instanceof BrokenLine)
                return error;
            controller.abort();
            throw error;
        }
    }
    async #opened(open) {
        try {
            return await open();
        }
        catch (error) {
            // Whether a request that was not answered is being worked on is unknown, so it is not sent again.
            throw error instanceof BrokenLine ? this.#lost(error) : error;
        }
    }
    /** The chunks of one line; returns how the stream ended, or why the line did. */
    async *#read({ response, close }) {
        const aborted = this.signal;
        aborted?.addEventListener("abort", close);
        try {
            if (aborted?.aborted)
                throw aborted.reason;
            for await (const { type, data, id } of eventsOf(response, this.#options.silence ?? 60_000)) {
                if (type === "done")
                    return endingOf(data);
                if (data === "[DONE]")
                    return "completed";
                const chunk = chunkOf(data);
                // Before it is handed on: whoever leaves while looking at it has it.
                if (this.#position && id && id !== this.#position.offset) {
                    this.#position = { ...this.#position, offset: id };
                    this.#attempts = 0;
                }
                yield chunk;
            }
            return new BrokenLine("The stream ended before the answer did.");
        }
        catch (error) {
            if (error instanceof BrokenLine && !aborted?.aborted)
                return error;
            throw error;
        }
        finally {
            aborted?.removeEventListener("abort", close);
            close();
        }
    }
    #lost(cause) {
        return new ConnectionLostError(cause.message, this.#position, { cause });
    }
}
async function post(follower, options) {
    const { caller, signal } = follower;
    const line = new AbortController();
    const hangUp = () => line.abort();
    if (signal?.aborted)
        throw signal.reason;
    const body = chatBody(options, options.resume ?? false);
    const answer = caller.call("/chat/completions", { method: "POST", body, signal: line.signal });
    try {
        const response = await unlessAborted(answer, signal);
        if (!response.ok)
            throw await errorOf(response);
        const id = response.headers.get("x-mulgil-stream");
        if (id)
            follower.kept(id);
        return { response, close: hangUp };
    }
    catch (error) {
        if (!options.resume)
            hangUp();
        else
            leave(answer, caller, hangUp);
        throw error;
    }
}
/** Hang up; but if the gateway is just beginning to keep the stream, stop that as well. */
function leave(answer, caller, hangUp) {
    const timer = setTimeout(hangUp, 1_000);
    answer
        .then((response) => {
        const id = response.headers.get("x-mulgil-stream");
        if (id)
            caller.stop(id);
    })
        .catch(() => { })
        .finally(() => {
        clearTimeout(timer);
        hangUp();
    });
}
