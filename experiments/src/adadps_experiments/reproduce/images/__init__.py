"""The paper's experiments on images: an autoencoder and a classifier."""
