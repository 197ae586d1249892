"""Counters and histograms that the event loop alone moves: no lock, and a few additions each.

Those of the Prometheus client take a lock for each number and ask each time what they are: what a
request counts would cost more than to write down what it used.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Generic, TypeVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

ValueT = TypeVar("ValueT")
Sample = tuple[str, Mapping[str, str], float]
"""What follows the metric's name, what labels it has beside the metric's own, and the value."""


class Series(Collector, Generic[ValueT]):
    """A metric, with a value for each row of labels that was counted."""

    kind: ClassVar[str]

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        new: Callable[[], ValueT],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._text = text
        self.labels = tuple(labels)
        self._values: defaultdict[tuple[str, ...], ValueT] = defaultdict(new)
        registry.register(self)

    def keep(self, firsts: set[str]) -> None:
        """Forget every row whose first label is none of these."""
        for labels in [each for each in self._values if each[0] not in firsts]:
            del self._values[labels]

    def describe(self) -> Iterator[Metric]:
        """Say what it is."""
        yield Metric(self._name, self._text, self.kind)

    def collect(self) -> Iterator[Metric]:
        """Say what it has; called by other threads."""
        metric = Metric(self._name, self._text, self.kind)
        for labels, value in self._values.copy().items():
            own = dict(zip(self.labels, labels, strict=True))
            for suffix, others, number in self._samples(value):
                metric.add_sample(self._name + suffix, {**own, **others}, number)
        yield metric

    @abstractmethod
    def _samples(self, value: ValueT) -> Iterator[Sample]: ...


class Counters(Series[float]):
    """A counter for each row of labels."""

    kind = "counter"

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        super().__init__(name, text, labels, float, registry)

    def add(self, *labels: str, by: float = 1) -> None:
        """Count; with 0 a row is shown before anything was counted there."""
        self._values[labels] += by

    def _samples(self, value: float) -> Iterator[Sample]:
        yield "_total", {}, value


class Histograms(Series[list[float]]):
    """A histogram of seconds for each row of labels."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """Begin with none; ``bounds`` are the upper ones of its buckets, in seconds, in order."""
        self._bounds = tuple(bounds)
        self._names = [*map(floatToGoString, self._bounds), "+Inf"]
        # How many are in each bucket, and the sum of all.
        super().__init__(name, text, labels, lambda: [0.0] * (len(self._names) + 1), registry)

    def observe(self, *labels: str, seconds: float) -> None:
        """Count one more."""
        value = self._values[labels]
        value[bisect_left(self._bounds, seconds)] += 1
        value[-1] += seconds

    def _samples(self, value: list[float]) -> Iterator[Sample]:
        *counts, total = value.copy()
        for name, count in zip(self._names, accumulate(counts), strict=True):
            yield "_bucket", {"le": name}, count
        yield "_count", {}, sum(counts)
        yield "_sum", {}, total
