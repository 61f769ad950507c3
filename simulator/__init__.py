"""A trace played through the admission that serves, on engines that are only reckoned: nothing runs."""
