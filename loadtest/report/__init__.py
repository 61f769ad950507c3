"""What a load test saw, as one page to read and one file for programs; and two of them side by side."""

from loadtest.report.files import compare, write_report
from loadtest.report.storage import RunError, load_run

__all__ = ["RunError", "compare", "load_run", "write_report"]
