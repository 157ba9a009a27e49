"""The dynamic batcher once more, as slow and literal as its description.

Keeps nothing between two calls but the entries: each scan starts at the front.
"""

from dataclasses import dataclass, field

from nereid.model_config import ModelConfig, QueuePolicy
from nereid_scheduler.core.requests.entry import Entry


@dataclass
class FormedBatch:
    entries: list[Entry]
    saturated: bool = False
    sealed: bool = False


@dataclass
class ReferenceBatcher:
    config: ModelConfig
    fresh: list[Entry] = field(default_factory=list)
    delayed: list[Entry] = field(default_factory=list)
    formed: list[FormedBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.config.batching is not None
        self.batching = self.config.batching
        self.preferred = set(self.batching.preferred_batch_sizes)
        self.delay_ns = self.batching.max_queue_delay_us * 1000

    @property
    def forms_ahead(self) -> bool:
        policy = self.batching.default_queue_policy
        limited = (
            policy.max_queue_size or policy.default_timeout_us or policy.allow_timeout_override
        )
        return not (limited or self.batching.priority_levels)

    def policy(self, level: int) -> QueuePolicy:
        default = self.batching.default_queue_policy
        return self.batching.priority_queue_policies.get(level, default)

    def held(self) -> list[Entry]:
        return [entry for formed in self.formed for entry in formed.entries] + self.queue()

    def queue(self) -> list[Entry]:
        levels = sorted({entry.level for entry in self.fresh + self.delayed})
        return [
            entry for level in levels for entry in self.fresh + self.delayed if entry.level == level
        ]

    def enqueue(self, entry: Entry) -> bool:
        """False: its queue is full."""
        bound = self.policy(entry.level).max_queue_size
        if bound and sum(other.level == entry.level for other in self.queue()) >= bound:
            return False
        self.fresh.append(entry)
        return True

    def requeue(self, entries: list[Entry]) -> None:
        formed = [entry for batch in self.formed for entry in batch.entries]
        self.fresh = entries + formed + self.fresh
        self.formed = []

    def remove_entry(self, entry: Entry) -> bool:
        for queue in (self.fresh, self.delayed, *(batch.entries for batch in self.formed)):
            if entry in queue:
                queue.remove(entry)
                self.formed = [batch for batch in self.formed if batch.entries]
                return True
        return False

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, str]]:
        expired = []
        timed = [e for e in self.held() if e.timeout_ns is not None or e.deadline_ns is not None]
        for entry in sorted(timed, key=_first_expiry):
            if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
                expired.append((entry, "deadline"))
                self.remove_entry(entry)
            elif entry.timeout_ns is not None and entry.timeout_ns <= now_ns:
                self.remove_entry(entry)
                if self.policy(entry.level).timeout_action == "DELAY":
                    self.delayed.append(entry)
                else:
                    expired.append((entry, "timeout"))
        return expired

    def form_batches(self, now_ns: int, instances: int) -> None:
        while self.forms_ahead and (self._growing() or len(self.formed) < 2 * instances):
            if not self._step(now_ns):
                return

    def next_batch(self, now_ns: int, instances: int) -> list[Entry]:
        if self.formed:
            self.form_batches(now_ns, instances)
        else:
            self._step(now_ns)
        if not self.formed:
            return []
        batch = self.formed.pop(0)
        while self._may_merge(batch, now_ns):
            batch.entries += self.formed.pop(0).entries
        if batch.sealed and not self.batching.priority_levels:
            self._join_alike(batch)
        return batch.entries

    def _join_alike(self, batch: FormedBatch) -> None:
        largest = max(self.preferred, default=self.config.max_batch_size)
        key = batch.entries[0].key
        for following in list(self.formed):
            if following.entries[0].key == key:
                if _size(batch.entries + following.entries) > largest:
                    return
                self.formed.remove(following)
                batch.entries += following.entries
        for queue in (self.fresh, self.delayed):
            for entry in list(queue):
                if entry.key == key:
                    if _size([*batch.entries, entry]) > largest:
                        return
                    queue.remove(entry)
                    batch.entries.append(entry)
            if queue:
                return

    def closes_ns(self) -> int | None:
        """When the delay of what waits in the queue is over, if it could be sent then."""
        if not self.delay_ns or not self.queue():
            return None
        return min(entry.enqueued_ns for entry in self.queue()) + self.delay_ns

    def _growing(self) -> FormedBatch | None:
        return self.formed[-1] if self.formed and not self.formed[-1].saturated else None

    def _may_merge(self, batch: FormedBatch, now_ns: int) -> bool:
        if not self.formed or not self.delay_ns or batch.sealed or self.formed[0].sealed:
            return False
        following = self.formed[0].entries
        return (
            following[0].key == batch.entries[0].key
            and _size(batch.entries) + _size(following) <= self.config.max_batch_size
            and now_ns - min(entry.enqueued_ns for entry in following) > self.delay_ns
        )

    def _step(self, now_ns: int) -> bool:
        largest = max(self.preferred, default=0)
        growing = self._growing()
        before = growing.entries if growing else []
        pending: list[Entry] = []
        best: list[Entry] = []
        ended = ""
        passed_largest = False
        for entry in self.queue():
            size = _size([*before, *pending, entry])
            if before or pending:
                if size > largest and not best:
                    best = list(pending)
                    passed_largest = True
                if size > max(1, self.config.max_batch_size):
                    ended = "full"
                elif entry.key != (before + pending)[0].key:
                    ended = "shape"
                if ended:
                    break
            pending.append(entry)
            if size in self.preferred:
                best = list(pending)
        oldest_ns = min((entry.enqueued_ns for entry in pending), default=now_ns)
        exceeded = self.delay_ns > 0 and now_ns - oldest_ns >= self.delay_ns
        if best and not exceeded:
            self._send(best, saturated=self.delay_ns == 0 or passed_largest)
        elif not pending:
            if growing is None or not ended:
                return False
            growing.saturated = True
        elif ended or _size(before + pending) >= largest:
            self._send(pending, saturated=True)
        elif exceeded or self.delay_ns == 0 or (before and _size(before) not in self.preferred):
            self._send(pending, saturated=False)
        else:
            return False
        if ended == "shape":
            self.formed[-1].sealed = True
        return True

    def _send(self, entries: list[Entry], *, saturated: bool) -> None:
        for entry in entries:
            (self.fresh if entry in self.fresh else self.delayed).remove(entry)
        growing = self._growing()
        if growing is None:
            self.formed.append(FormedBatch(list(entries), saturated))
        else:
            growing.entries += entries
            growing.saturated = saturated


def _size(entries: list[Entry]) -> int:
    return sum(entry.valid.batch_size for entry in entries)


def _first_expiry(entry: Entry) -> int:
    return min(at for at in (entry.timeout_ns, entry.deadline_ns) if at is not None)
