"""What edriver is measured with: `make bench` (bench.py) and `make churn` (churn_check.py)."""
