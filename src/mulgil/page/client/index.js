export { ChatStream } from "./answer.js";
export { followStream, streamChat } from "./chat.js";
export { AuthenticationError, ConnectionLostError, MulgilError, NotFoundError, PermissionError, RateLimitError, StatusError, StreamFailedError, UnavailableError, ValidationError, } from "./errors.js";
export { EventParser } from "./events.js";
export { eventSourceChat } from "./eventsource.js";
