"""What the measurements say: for each thing that can go wrong on the way whether it did, why, and what to do."""

import itertools
import statistics
from dataclasses import dataclass, replace
from typing import Literal

from mulgil.doctor.cures import called, cure, proxy_of
from mulgil.doctor.measurements import Answer, Measured
from mulgil.doctor.streams import Stream

# A busy machine makes some events of a good line come together too.
_MANY_TOGETHER = 0.4
_HELD_BACK = 0.5
_STREAM_HEADERS = {"cache-control": "no-transform", "content-type": "text/event-stream"}
_ALWAYS_SENT = ("x-request-id", "openai-processing-ms")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: of the thing.
        verdict: how it is.
        said: what was measured.
        cause: what is probably the reason, where it is bad.
        cure: what to change.
    """

    name: str
    verdict: Literal["good", "bad", "skipped"]
    said: str
    cause: str = ""
    cure: str = ""


def judge(measured: Measured, idle: float, *, loopback: bool = False) -> list[Check]:
    """Every check, in the order in which they are told.

    Args:
        measured: what was measured.
        idle: the seconds of silence that were tried.
        loopback: the gateway was asked on the machine itself, where nobody listens in.
    """
    proxy = proxy_of(measured.paced.headers)
    return [
        _connection(measured, loopback=loopback),
        Check("first byte", "good", f"headers after {_ms(measured.paced.headers_after)}"),
        _pace(measured.paced, proxy),
        _compression(measured, proxy),
        _silence(measured, idle, proxy),
        _headers(measured.paced, proxy),
        _cors(measured, proxy),
        _errors(measured.not_found, proxy),
        _body(measured, proxy),
        _websocket(measured.websocket, proxy),
    ]


def compared(checks: list[Check], direct: list[Check]) -> list[Check]:
    """*checks*, each finding blamed on the gateway where *direct*, without the proxies, has it too."""
    bad_too = {check.name for check in direct if check.verdict == "bad"}
    return [
        replace(check, cause="the direct URL has it too, so it is the gateway or its machine, not what is before it")
        if check.verdict == "bad" and check.name in bad_too
        else check
        for check in checks
    ]


def _connection(measured: Measured, *, loopback: bool) -> Check:
    spoken = f"{measured.paced.http_version}, {measured.paced.tls_version or 'no TLS'}"
    if measured.alpn:
        spoken += f"; browsers would speak {measured.alpn}"
    if measured.paced.tls_version is None and not loopback:
        return Check(
            "connection", "bad", spoken, "the key travels readable for everybody on the way", "serve https only"
        )
    if measured.alpn == "http/1.1":
        cause = "a browser opens at most six connections to one host over HTTP/1.1: the seventh stream waits"
        return Check("connection", "bad", spoken, cause, "switch HTTP/2 on where TLS ends")
    return Check("connection", "good", spoken)


def _pace(paced: Stream, proxy: str) -> Check:
    if len(paced.ticks) < 2:
        said = f"the stream ended after {len(paced.ticks)} events" + (f": {paced.broken_by}" if paced.broken_by else "")
        return Check("pace", "bad", said, f"{called(proxy)} ends or changes the stream", cure("gathered", proxy))
    sent = statistics.median(b.sent - a.sent for a, b in itertools.pairwise(paced.ticks))
    said = (
        f"{len(paced.ticks)} events sent {_ms(sent)} apart came {_ms(statistics.median(paced.gaps))} apart "
        f"(longest {_ms(max(paced.gaps))}); {paced.together:.0%} of them came together with the one before"
    )
    if paced.together > _MANY_TOGETHER and paced.largest_delay > min(_HELD_BACK, 3 * sent):
        whole = "the whole response" if paced.together > 0.9 else "several events"
        cause = f"{called(proxy)} gathers {whole} before passing anything on"
        return Check("pace", "bad", said, cause, cure("gathered", proxy))
    if not paced.whole:
        said += f"; it ended before its end ({paced.broken_by or 'without [DONE]'})"
        return Check("pace", "bad", said, f"{called(proxy)} limits how long a response may take", cure("cut", proxy))
    return Check("pace", "good", said)


def _compression(measured: Measured, proxy: str) -> Check:
    used = {
        stream.headers["content-encoding"]
        for stream in (measured.paced, measured.brotli)
        if stream.headers.get("content-encoding", "identity") != "identity"
    }
    if not used:
        return Check("compression", "good", "streams are not compressed")
    cause = f"{called(proxy)} compresses event streams although they say no-transform; a compressor holds text back"
    return Check("compression", "bad", f"streams come with {', '.join(sorted(used))}", cause, cure("compressed", proxy))


def _silence(measured: Measured, idle: float, proxy: str) -> Check:
    silent, pinged = measured.silent, measured.pinged
    if silent.whole and pinged.whole:
        return Check("silence", "good", f"{idle:g} s without a byte were survived")
    if not pinged.whole and pinged.pings:
        said = f"cut after {pinged.quiet_for:.1f} s although {pinged.pings} comment lines came through"
        return Check("silence", "bad", said, f"{called(proxy)} limits how long a response may take", cure("cut", proxy))
    if not pinged.whole:
        said = f"cut after {pinged.quiet_for:.1f} s without a byte, before a comment line came through"
        if (every := pinged.hello.get("ping_interval")) and every < pinged.quiet_for - 1:
            cause = f"{called(proxy)} holds comment lines back, and cuts what is silent"
            return Check("silence", "bad", said, cause, f"{cure('gathered', proxy)}; {cure('cut', proxy)}")
        cause = f"{called(proxy)} has an idle time-out shorter than the pause between comment lines"
        return Check("silence", "bad", said, cause, f"{cure('cut', proxy)}; or set MULGIL_PING_INTERVAL lower")
    said = (
        f"cut after {silent.quiet_for:.1f} s without a byte; with comment lines {idle:g} s were survived. "
        "Streams live, an answer that is not streamed and takes longer does not"
    )
    return Check("silence", "bad", said, f"{called(proxy)} has an idle time-out", cure("cut", proxy))


def _headers(paced: Stream, proxy: str) -> Check:
    expected = (*paced.hello.get("headers", ()), *_ALWAYS_SENT)
    lost = sorted({name for name in expected if name not in paced.headers})
    lost += [f"{name}: {part}" for name, part in _STREAM_HEADERS.items() if part not in paced.headers.get(name, "")]
    if not lost:
        return Check("headers", "good", "request id, retry and rate-limit headers arrive")
    cause = f"{called(proxy)} passes on only headers that it knows, or changes them"
    return Check("headers", "bad", f"lost or changed: {', '.join(lost)}", cause, "let the proxy pass these headers on")


def _cors(measured: Measured, proxy: str) -> Check:
    allowed = measured.paced.hello.get("cors")
    origins = measured.paced.headers.get_list("access-control-allow-origin")
    if not allowed:
        if origins:
            cause = f"{called(proxy)} adds CORS headers of its own, though the gateway lets no such page in"
            return Check(
                "CORS", "bad", f"access-control-allow-origin: {', '.join(origins)}", cause, "remove them there"
            )
        return Check("CORS", "skipped", "the gateway lets no page of this origin in (MULGIL_CORS_ORIGINS, --origin)")
    if len(origins) != 1 or "," in origins[0]:
        said = f"access-control-allow-origin comes {len(origins)} times" if origins else "no CORS headers arrive"
        cause = f"{called(proxy)} {'adds its own: browsers refuse two' if origins else 'removes them'}"
        return Check("CORS", "bad", said, cause, "let the gateway alone write the access-control headers")
    exposed = measured.paced.headers.get("access-control-expose-headers", "")
    preflight = measured.preflight
    if (
        preflight is None
        or preflight.status not in (200, 204)
        or "access-control-allow-origin" not in preflight.headers
    ):
        said = f"a browser's preflight gets {preflight.status if preflight else 'nothing'}, without permission"
        return Check("CORS", "bad", said, f"{called(proxy)} answers OPTIONS itself", "pass OPTIONS on to the gateway")
    if "x-request-id" not in exposed:
        cause = f"{called(proxy)} removes access-control-expose-headers"
        return Check("CORS", "bad", "pages cannot read retry and rate-limit headers", cause, "pass that header on")
    return Check("CORS", "good", "answers, preflights and exposed headers arrive")


def _errors(not_found: Answer, proxy: str) -> Check:
    if not_found.status == 404 and not_found.is_the_gateways:
        return Check("errors", "good", "the gateway's own errors arrive")
    said = f"instead of the gateway's 404 came {not_found.status or 'a broken connection'}"
    said += "" if not_found.is_the_gateways else ", not in the gateway's words"
    cause = f"{called(proxy)} puts its own error pages in place of the gateway's"
    return Check("errors", "bad", said, cause, "switch error interception off (nginx: proxy_intercept_errors off;)")


def _body(measured: Measured, proxy: str) -> Check:
    size = f"{measured.paced.hello.get('max_body_bytes', 1024):,} bytes"
    if measured.large.is_the_gateways:
        return Check("body", "good", f"a body of {size} arrives")
    said = f"a body of {size}, which the gateway takes, gets {measured.large.status or 'a broken connection'}"
    cause = f"{called(proxy)} takes smaller bodies only"
    return Check(
        "body", "bad", said, cause, "the gateway's MULGIL_MAX_BODY_BYTES there too (nginx: client_max_body_size)"
    )


def _websocket(answer: Answer | None, proxy: str) -> Check:
    if answer is None:
        return Check("WebSocket", "skipped", "the gateway has no /ws/chat")
    if answer.status == 101:
        return Check("WebSocket", "good", "the upgrade passes")
    if answer.status in (401, 403) and "x-request-id" in answer.headers:
        return Check("WebSocket", "good", f"the upgrade passes; the gateway itself refuses it ({answer.status})")
    said = f"the upgrade gets {answer.status or 'a broken connection'}"
    cause = f"{called(proxy)} does not pass the Upgrade header on"
    return Check(
        "WebSocket", "bad", said, cause, "pass Upgrade and Connection on (nginx: see nginx/mulgil.conf.template)"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
