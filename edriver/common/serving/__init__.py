"""What every gRPC server of edriver has: see call_faults.py."""
