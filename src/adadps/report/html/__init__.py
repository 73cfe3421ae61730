"""Reports for people: one html page of a run, or of several side by side."""

from adadps.report.html.comparison import report_of_comparison
from adadps.report.html.single import report_of_run

__all__ = ["report_of_comparison", "report_of_run"]
