"""Reports for people: one HTML page about a run, or about several runs side by side."""

from adadps.report.html.comparison import report_of_comparison
from adadps.report.html.reports import report_of_run

__all__ = ["report_of_comparison", "report_of_run"]
