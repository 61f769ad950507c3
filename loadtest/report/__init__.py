"""What a load test saw, as one page to read and one file for programs; and two of them side by side."""

from loadtest.report.storing import RunError, load_run
from loadtest.report.writing import compare, write_report

__all__ = ["RunError", "compare", "load_run", "write_report"]
