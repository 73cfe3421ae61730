"""The federated comparison: AdaDPS beside DP-FedAvg and DP-FedAdam."""
