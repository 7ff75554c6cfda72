"""Prometheus metrics: counters of events, gauges read on request, and the server that is scraped."""
