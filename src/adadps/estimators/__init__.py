"""Private estimators for scikit-learn, tables, the doctor, and the planner of settings."""

from adadps.estimators.classifier import AdaDPSClassifier
from adadps.estimators.pipeline import make_text_pipeline
from adadps.estimators.regressor import AdaDPSRegressor
from adadps.estimators.vectorizer import PublicVectorizer

__all__ = ["AdaDPSClassifier", "AdaDPSRegressor", "PublicVectorizer", "make_text_pipeline"]
