"""Plays a trace through the router's own admission, on engines that are modelled: nothing needs to run."""
