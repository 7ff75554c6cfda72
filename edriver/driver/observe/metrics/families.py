"""Prometheus' families of metrics, with edriver's prefix."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def gauge(name: str, help_text: str, value: float) -> Metric:
    """One number that may fall."""
    return GaugeMetricFamily(f"edriver_{name}", help_text, value=value)


def gauges(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Numbers that may fall, by the value of one label."""
    return _filled(GaugeMetricFamily(f"edriver_{name}", help_text, labels=[label]), values)


def counter(name: str, help_text: str, value: float) -> Metric:
    """One number that only grows."""
    return CounterMetricFamily(f"edriver_{name}", help_text, value=value)


def counters(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Numbers that only grow, by the value of one label."""
    return _filled(CounterMetricFamily(f"edriver_{name}", help_text, labels=[label]), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key], value)
    return family
