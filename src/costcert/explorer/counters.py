"""What the service has done so far, in the text format that Prometheus reads."""

from __future__ import annotations

from collections import defaultdict

# Upper ends of the buckets, in seconds.
BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class Counters:
    """Requests by route and status, how long they took, and how many are under way."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.under_way = 0
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def count(self, route: str, status: int, seconds: float) -> None:
        self.requests[route, status] += 1
        self._buckets[sum(seconds > end for end in BUCKETS)] += 1
        self._seconds += seconds

    def text(self) -> str:
        lines = [
            "# HELP costcert_requests_total Requests that were answered.",
            "# TYPE costcert_requests_total counter",
            *(
                f'costcert_requests_total{{route="{route}",status="{status}"}} {times}'
                for (route, status), times in sorted(self.requests.items())
            ),
            "# HELP costcert_requests_under_way Requests that are being answered.",
            "# TYPE costcert_requests_under_way gauge",
            f"costcert_requests_under_way {self.under_way}",
            "# HELP costcert_request_seconds How long answers took.",
            "# TYPE costcert_request_seconds histogram",
        ]
        total = 0
        for end, times in zip((*map(str, BUCKETS), "+Inf"), self._buckets, strict=True):
            total += times
            lines.append(f'costcert_request_seconds_bucket{{le="{end}"}} {total}')
        lines += [
            f"costcert_request_seconds_sum {self._seconds:.6f}",
            f"costcert_request_seconds_count {total}",
        ]
        return "\n".join(lines) + "\n"
