"""The paper's experiment on an LSTM: sentiment of IMDB's reviews, by its model and by ours."""
