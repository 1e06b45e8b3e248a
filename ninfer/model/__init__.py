"""The mathematics of each architecture, written once in verbs."""
