"""The cluster as the operator sees it: the only package that talks to the Kubernetes API. Decides nothing."""
