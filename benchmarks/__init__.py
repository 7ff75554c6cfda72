"""What edriver is measured with: `make bench` (churn.py) and `make churn` (churn_check.py)."""
