"""Private estimators for code that speaks scikit-learn."""

from adadps.estimator.classifier import AdaDPSClassifier
from adadps.estimator.pipeline import make_text_pipeline
from adadps.estimator.regressor import AdaDPSRegressor
from adadps.estimator.vectorizer import PublicVectorizer

__all__ = ["AdaDPSClassifier", "AdaDPSRegressor", "PublicVectorizer", "make_text_pipeline"]
