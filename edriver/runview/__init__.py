"""What the events of a run come to: one fold of them, for all who show a run.

Start with `run_view.py`: `RunView.fold(event)` takes the events in their order, and can be read at any time. The driver
folds the events that it makes, for status, metrics and a run's last event; `history.py` adds what is drawn over time,
for reports and the page. Pure: no clock, no file, no thread; imports nothing of the driver.
"""
