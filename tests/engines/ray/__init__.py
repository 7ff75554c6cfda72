"""edriver on a real Ray cluster of several raylets."""
