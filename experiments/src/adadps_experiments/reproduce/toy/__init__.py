"""The toy regression of the paper."""
