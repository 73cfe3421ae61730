"""Reports for people: one html page of a run, or of several side by side."""

from adadps.report.html.reports import report_of_comparison, report_of_run

__all__ = ["report_of_comparison", "report_of_run"]
