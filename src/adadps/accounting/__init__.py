"""What a run costs, and who has paid: contract, samplers, epsilon, plan, ledger."""
