"""Whether the memory that projects/zero prints, small, is the bytes needed: 5 % more at most at
its places, and within a step the buckets in flight and what the loss is made of.

Usage: check_zero_figures.py RANKS SHARDRUN ZERO
"""
import re
import subprocess
import sys

LAYERS, WIDTH, BATCH = 6, 520, 2  # a layer is more than the default bucket
LAYER = 4 * (WIDTH * WIDTH + WIDTH) / 1e6
PARAMETERS = LAYERS * LAYER
IN_FLIGHT = [0, 0, 1, 2]  # buckets, of a layer each: of gradients; of values, too
LOSS = 0.4 * LAYER  # activations and workspaces
STAGES = len(IN_FLIGHT)


def needed(stage, ranks):
    """At each place: values, gradients, and after a step two averages."""
    values, gradients, averages = (PARAMETERS / (ranks if stage >= least else 1) for least in (3, 2, 1))
    kept = gradients if stage < 2 else 0  # what has no gradient buffer has none before backward
    before, after = values + gradients, values + gradients + 2 * averages
    places = {'before step()': before, 'after step()': after, 'after the last': after}
    return places if ranks == 1 else {'after data parallel': values + kept, **places}  # alone, values come in forward


def main():
    ranks, shardrun, program = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    done = subprocess.run([shardrun, '-n', str(ranks), program, '--layers', str(LAYERS), '--width', str(WIDTH), '--batch',
                           str(BATCH), '--steps', '3'], stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout)
    rows = {found[1]: [float(number) for number in found[2].split()]
            for found in re.finditer(r'^(\D+?) +((?:-?[\d.]+ *)+)$', done.stdout, re.MULTILINE)}
    wrong = []

    def expect(true, text):
        if not true:
            wrong.append(text)

    for stage in range(STAGES):
        for place, least in needed(stage, ranks).items():
            now, peak = rows[place][2 * stage:2 * stage + 2]
            expect(0.999 * least <= now <= 1.05 * least, f'stage {stage}, {place}: {now} MB, needed {least:.3f}')
            if place == 'after step()':
                expect(peak <= 1.05 * least, f'stage {stage}, {place}: {peak} MB at the peak, needed {least:.3f}')
        most = needed(stage, ranks)['after the last'] + (IN_FLIGHT[stage] * LAYER if ranks > 1 else 0) + LOSS
        peak = rows['after the last'][2 * stage + 1]
        expect(peak <= most, f'stage {stage}, the last step: {peak} MB at the peak, {most:.3f} expected at most')
        expect(abs(rows['needed'][stage] / needed(stage, ranks)['after step()'] - 1) < 1e-3, f'stage {stage}: {rows["needed"]}')
    sys.exit('; '.join(wrong) if wrong else 0)


if __name__ == '__main__':
    main()
