"""The API of `lanefeed.dev/v1alpha1`: typed spec and status, and the loader that names every fault of a manifest."""
