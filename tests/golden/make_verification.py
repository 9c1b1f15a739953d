"""Prints the numbers that tests/test_verification.c compares with: the measures of insightface's verification.py, and TAR at FAR by
numpy.interp, for made-up distances. Needs numpy."""
import numpy

PAIRS = (1003, 57)


def made_up(pairs):
    """tests/test_verification.c has the same."""
    i = numpy.arange(pairs)
    same = (i * i + 3 * i) % 7 < 3
    spread = (i * 7919 % 1009) / 1009
    distance = numpy.where(same, 0.3 + 1.5 * spread, 1.1 + 1.8 * spread)
    return distance, same


def accuracy(distance, same):
    thresholds = numpy.arange(0, 4, 0.01)
    folds = numpy.array_split(numpy.arange(len(distance)), 10)
    results = []
    for fold in folds:
        rest = numpy.setdiff1d(numpy.arange(len(distance)), fold)
        right = [numpy.mean((distance[rest] < t) == same[rest]) for t in thresholds]
        best = thresholds[numpy.argmax(right)]
        results.append(numpy.mean((distance[fold] < best) == same[fold]))
    return 100 * numpy.mean(results), 100 * numpy.std(results)


def tar(same, different, far):
    different = numpy.sort(different)
    points = [numpy.mean(same < bound) for bound in different] + [1.0]
    return 100 * numpy.interp(far * len(different), numpy.arange(len(different) + 1), points)


for pairs in PAIRS:
    distance, same = made_up(pairs)
    numbers = [*accuracy(distance, same)]
    numbers += [tar(distance[same], distance[~same], far) for far in (0.5, 0.1, 0.0421)]
    print(pairs, int(same.sum()), *("%.12g" % number for number in numbers))
