import { ChatStream, chunkOf, endingOf } from "./answer.js";
import { Caller, chatBody } from "./chat.js";
import { ConnectionLostError, errorOf } from "./errors.js";
import { BrokenLine, unlessAborted } from "./line.js";
/**
 * Answer a conversation through the browser's own EventSource, which reconnects by itself.
 *
 * With a `url` it needs no key: have your server mint the ticket. With a `key` it makes the stream and its ticket first.
 */
export function eventSourceChat(options) {
    return new ChatStream(chunks(options), options);
}
async function* chunks(options) {
    const { url, stop } = "url" in options ? { url: options.url, stop: () => { } } : await create(options);
    const queue = new Queue();
    const source = new EventSource(url);
    listen(source, queue, options);
    const abort = () => queue.end(options.signal?.reason);
    options.signal?.addEventListener("abort", abort);
    if (options.signal?.aborted)
        abort();
    let whole = false;
    try {
        const status = yield* queue.items();
        whole = true;
        return status;
    }
    finally {
        source.close();
        options.signal?.removeEventListener("abort", abort);
        if (!whole)
            stop();
    }
}
async function create(options) {
    const caller = new Caller(options);
    const request = { method: "POST", body: chatBody(options, false) };
    let response;
    try {
        response = await unlessAborted(caller.call("/streams", request, "application/json"), options.signal);
    }
    catch (error) {
        throw error instanceof BrokenLine ? new ConnectionLostError(error.message, null, { cause: error }) : error;
    }
    if (!response.ok)
        throw await errorOf(response);
    const { id, ticket } = (await response.json());
    const url = caller.url(`/streams/${id}?ticket=${encodeURIComponent(ticket)}`);
    return { url, stop: () => caller.stop(id) };
}
function listen(source, queue, callbacks) {
    let attempt = 0;
    source.onopen = () => {
        if (attempt > 0)
            callbacks.onResumed?.();
        attempt = 0;
    };
    source.onmessage = ({ data }) => {
        try {
            if (data !== "[DONE]")
                queue.add(chunkOf(data));
        }
        catch (error) {
            queue.end(error);
        }
    };
    source.addEventListener("done", ({ data }) => {
        try {
            queue.end(undefined, endingOf(data));
        }
        catch (error) {
            queue.end(error);
        }
    });
    source.onerror = (cause) => {
        // EventSource tells neither status nor reason; it gives up on any status but 200.
        if (source.readyState === EventSource.CLOSED) {
            queue.end(new ConnectionLostError("The server did not take the connection.", null));
        }
        else {
            callbacks.onReconnect?.({ attempt: ++attempt, delay: 0, cause });
        }
    };
}
/** What was pushed, for a reader that pulls. */
class Queue {
    #chunks = [];
    #ended = null;
    #wake = () => { };
    add(chunk) {
        this.#chunks.push(chunk);
        this.#wake();
    }
    end(error, status = null) {
        this.#ended ??= { error, status };
        this.#wake();
    }
    async *items() {
        for (;;) {
            while (this.#chunks.length > 0)
                yield this.#chunks.shift();
            if (this.#ended) {
                if (this.#ended.status)
                    return this.#ended.status;
                throw this.#ended.error;
            }
            await new Promise((resolve) => (this.#wake = resolve));
        }
    }
}
