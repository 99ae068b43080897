"""Which proxy it probably is, and what to write into its configuration."""

from collections.abc import Mapping

_MARKS = {
    "cf-ray": "cloudflare",
    "x-amz-cf-id": "cloudfront",
    "x-envoy-upstream-service-time": "envoy",
}
_NAMES = {
    "nginx": "nginx",
    "openresty": "nginx",
    "cloudflare": "cloudflare",
    "caddy": "caddy",
    "awselb": "alb",
    "envoy": "envoy",
    "apache": "apache",
}
_CALLED = {
    "nginx": "nginx",
    "cloudflare": "Cloudflare",
    "cloudfront": "CloudFront",
    "caddy": "Caddy",
    "alb": "the AWS load balancer",
    "envoy": "Envoy",
    "apache": "Apache",
}
_CURES: Mapping[str, Mapping[str, str]] = {
    "gathered": {
        "nginx": "proxy_buffering off; gzip off; in its location, or the configuration in nginx/",
        "caddy": "flush_interval -1 in reverse_proxy, and no encode for text/event-stream",
        "cloudflare": "no Worker or rule that reads the whole response; Response Buffering off",
        "apache": "SetEnv proxy-sendchunked 1 and SetEnv no-gzip 1; flushpackets=on at ProxyPass",
        "": "switch response buffering off on the proxy, at least for text/event-stream",
    },
    "compressed": {
        "nginx": "gzip off; (and brotli off;) in its location",
        "caddy": "leave text/event-stream out of encode",
        "cloudflare": "a Compression Rule that switches compression off for text/event-stream",
        "": "leave text/event-stream out of what the proxy compresses",
    },
    "cut": {
        "nginx": "proxy_read_timeout 300s; and proxy_send_timeout 300s;",
        "alb": "idle_timeout.timeout_seconds = 300 among the load balancer's attributes",
        "cloudflare": "Proxy Read Timeout, where the plan has it; else stream whatever takes long",
        "caddy": "transport http { read_timeout 300s } in reverse_proxy, if it is set at all",
        "": "raise the proxy's idle or response time-out to 300 s",
    },
}


def proxy_of(headers: Mapping[str, str]) -> str:
    """The proxy that left its mark on a response; empty where none did."""
    for header, name in _MARKS.items():
        if header in headers:
            return name
    marks = f"{headers.get('server', '')} {headers.get('via', '')}".lower()
    return next((name for mark, name in _NAMES.items() if mark in marks), "")


def called(proxy: str) -> str:
    """The proxy's name in a sentence."""
    return _CALLED.get(proxy, "a proxy on the way")


def cure(finding: str, proxy: str) -> str:
    """What to change."""
    return _CURES[finding].get(proxy, _CURES[finding][""])
