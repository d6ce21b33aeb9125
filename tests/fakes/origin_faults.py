"""What the fake origin does wrong on purpose: rules matched against requests, and a throttle."""

import fnmatch

import msgspec


class Fault(msgspec.Struct, kw_only=True):
    """One rule: which requests it hits, and what happens to them.

    The match: `operation` and `key` (`bucket/key`) are shell patterns; the first `skip` matching requests are spared, the next
    `times` are hit (-1: all).

    The effect: `delay_s` passes first. `drop` "before" cuts the connection before anything is done, "after" when the operation
    was carried out. `body` is answered with 200 in place of the truth, nothing carried out. `status` answers an error with
    `code`, carrying the operation out only where `is_processed`. The rest spoils the true answer: `error_in_200` a code,
    `cut_body_at` bytes, `body_bytes_per_s`, and replaced header values.
    """

    operation: str = "*"
    key: str = "*"
    skip: int = 0
    times: int = 1
    delay_s: float = 0.0
    drop: str = ""
    status: int = 0
    code: str = "InternalError"
    region: str = ""
    retry_after_s: int = -1
    is_processed: bool = False
    error_in_200: str = ""
    body: str = ""
    cut_body_at: int = -1
    body_bytes_per_s: float = 0.0
    etag: str = ""
    content_range: str = ""
    content_length: int = -1
    headers: dict[str, str] = {}


class Faults:
    """The rules in force, in order; the first that matches is used up by one."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []
        self.hits = 0

    def add(self, *rules: Fault) -> None:
        """Put rules behind those in force."""
        self._rules.extend(msgspec.structs.replace(rule) for rule in rules)

    def clear(self) -> None:
        """End all rules."""
        self._rules.clear()

    def take(self, operation: str, bucket: str, key: str) -> Fault | None:
        """Find the rule that hits this request."""
        path = f"{bucket}/{key}"
        for rule in self._rules:
            if not fnmatch.fnmatchcase(operation, rule.operation) or not fnmatch.fnmatchcase(path, rule.key):
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.times == 0:
                continue
            rule.times -= 1 if rule.times > 0 else 0
            self.hits += 1
            return rule
        return None


class Throttle:
    """Requests a second that the origin takes before it says SlowDown; no bound where the rate is 0."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.burst = 0.0
        self._level = 0.0
        self._seen_s = 0.0

    def set(self, now_s: float, *, rate: float, burst: float) -> None:
        """Start with a full burst."""
        self.rate, self.burst = rate, burst
        self._level, self._seen_s = burst, now_s

    def takes(self, now_s: float) -> bool:
        """Take one request, or refuse it."""
        if self.rate <= 0:
            return True
        self._level = min(self.burst, self._level + (now_s - self._seen_s) * self.rate)
        self._seen_s = now_s
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True
