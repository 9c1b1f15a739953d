#!/usr/bin/env python3
"""Baselines on a data set in the format of the Extreme Classification Repository: train.txt and test.txt of DIR.

    python3 -m venv venv && venv/bin/pip install scikit-learn omikuji
    venv/bin/python baselines.py DIR

    frequency    the most frequent labels of the training set, for every point
    neighbours   labels of the K training points of the largest cosine, each with the sum of the cosines (scikit-learn)
    omikuji      one-vs-rest linear classifiers in a forest of label trees, Parabel's (Rust, with its defaults)

Features that are TF-IDF, as of prepare, give the usual neighbours by TF-IDF.
"""
import argparse
import os
import sys
import time

import numpy as np
import scipy.sparse as sparse

TOP = (1, 3, 5)


def read_set(path):
    """(features [points, features], labels [points, labels]) as sparse matrices."""
    ends, columns, values, label_ends, labels = [0], [], [], [0], []
    with open(path, encoding="ascii") as file:
        _, width, classes = map(int, file.readline().split())
        for line in file:
            head, *pairs = line.rstrip("\n").split(" ")
            if pairs and not pairs[-1]: # a space ends the line
                pairs.pop()
            labels.extend(int(one) for one in head.split(",") if one)
            label_ends.append(len(labels))
            for pair in pairs:
                column, _, value = pair.partition(":")
                columns.append(int(column))
                values.append(float(value))
            ends.append(len(columns))
    count = len(ends) - 1
    return (sparse.csr_matrix((np.array(values, np.float32), columns, ends), (count, width)),
            sparse.csr_matrix((np.ones(len(labels), np.float32), labels, label_ends), (count, classes)))


def inverse_propensities(labels, a, b):
    count = np.asarray(labels.sum(axis=0)).ravel().astype(float)
    return 1 + (np.log(labels.shape[0]) - 1) * (b + 1) ** a * (count + b) ** -a


def measure(predicted, truth, inverse):
    """{name: percent} of predicted labels [points, >= 5], best first; -1 for none."""
    found = {}
    hits = np.zeros(predicted.shape, bool)
    ideal = np.zeros((predicted.shape[0], max(TOP)))
    sizes = np.diff(truth.indptr)
    for row in range(predicted.shape[0]):
        ones = truth.indices[truth.indptr[row]:truth.indptr[row + 1]]
        hits[row] = np.isin(predicted[row], ones)
        best = np.sort(inverse[ones])[::-1][:max(TOP)]
        ideal[row, :len(best)] = best
    gains = hits * inverse[np.maximum(predicted, 0)]
    for k in TOP:
        found[f"P@{k}"] = 100 * hits[:, :k].sum() / (k * len(hits))
        found[f"PSP@{k}"] = 100 * gains[:, :k].sum() / ideal[:, :k].sum()
        found[f"R@{k}"] = 100 * np.mean(hits[sizes > 0, :k].sum(axis=1) / sizes[sizes > 0])
    return found


def by_frequency(train_labels, points, top):
    order = np.argsort(-np.asarray(train_labels.sum(axis=0)).ravel(), kind="stable")
    return np.tile(order[:top], (points, 1))


def by_neighbours(train, train_labels, test, neighbours, top):
    from sklearn.neighbors import NearestNeighbors
    distance, index = NearestNeighbors(n_neighbors=neighbours, metric="cosine", algorithm="brute").fit(train).kneighbors(test)
    rows = np.repeat(np.arange(test.shape[0]), neighbours)
    weights = sparse.csr_matrix(((1 - distance).ravel(), (rows, index.ravel())), (test.shape[0], train.shape[0]))
    scores = (weights @ train_labels).tocsr()
    predicted = np.full((test.shape[0], top), -1)
    for row in range(test.shape[0]):
        ones = slice(scores.indptr[row], scores.indptr[row + 1])
        best = np.argsort(-scores.data[ones], kind="stable")[:top]
        predicted[row, :len(best)] = scores.indices[ones][best]
    return predicted


def by_omikuji(folder, test, top):
    import omikuji
    hyper = omikuji.Model.default_hyper_param()
    model = omikuji.Model.train_on_data(os.path.join(folder, "train.txt"), hyper)
    predicted = np.full((test.shape[0], top), -1)
    for row in range(test.shape[0]):
        ones = slice(test.indptr[row], test.indptr[row + 1])
        pairs = list(zip(test.indices[ones].tolist(), test.data[ones].tolist()))
        best = [label for label, _ in model.predict(pairs, top_k=top)]
        predicted[row, :len(best)] = best
    return predicted


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, default=20, metavar="K", help="(%(default)s)")
    parser.add_argument("--propensity-a", type=float, default=0.55, metavar="X", help="A of the propensities, as of debs (%(default)s)")
    parser.add_argument("--propensity-b", type=float, default=1.5, metavar="X", help="B of the propensities (%(default)s)")
    parser.add_argument("--only", choices=["frequency", "neighbours", "omikuji"], help="this baseline alone")
    parser.add_argument("folder", metavar="DIR")
    wanted = parser.parse_args(argv)
    train, train_labels = read_set(os.path.join(wanted.folder, "train.txt"))
    test, truth = read_set(os.path.join(wanted.folder, "test.txt"))
    inverse, top = inverse_propensities(train_labels, wanted.propensity_a, wanted.propensity_b), max(TOP)
    baselines = {"frequency": lambda: by_frequency(train_labels, test.shape[0], top),
                 "neighbours": lambda: by_neighbours(train, train_labels, test, wanted.neighbours, top),
                 "omikuji": lambda: by_omikuji(wanted.folder, test, top)}
    for name, predict in baselines.items():
        if wanted.only in (None, name):
            begun = time.perf_counter()
            found = measure(predict(), truth, inverse)
            print(f"{name:12}" + "  ".join(f"{key} {value:.2f}" for key, value in found.items())
                  + f"  ({time.perf_counter() - begun:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
