export { ChatStream, type ChatDelta, type ChatResult, type Chunk, type Reconnect, type ToolCallDelta, type Usage } from "./answer.js";
export { followStream, streamChat, type ChatOptions, type Connection, type Message, type ReconnectRules } from "./chat.js";
export {
  AuthenticationError,
  ConnectionLostError,
  MulgilError,
  NotFoundError,
  PermissionError,
  RateLimitError,
  StatusError,
  StreamFailedError,
  UnavailableError,
  ValidationError,
  type StreamPosition,
} from "./errors.js";
export { EventParser, type ServerEvent } from "./events.js";
export { eventSourceChat, type EventSourceOptions } from "./eventsource.js";
